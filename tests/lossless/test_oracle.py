"""The oracle is judged, too: by published vectors, by hand, and by what chance must come to."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from refdraft.decoder.request import DecodeRequest
from refdraft.decoder.sampling import SamplingOptions
from tests.lossless import oracle
from tests.lossless.rules import EndsWith, Residues

REQUEST = DecodeRequest(prompt=(0, 1), max_tokens=9)
LOGITS = [2.0, -1.0, 0.5, 0.5, 3.0]


def scores(output: list[int], **options: object) -> list[float]:
    fields = {name: options.pop(name) for name in ("eos_ids", "min_tokens", "constraint") if name in options}
    return oracle.scores(LOGITS, replace(REQUEST, sampling=SamplingOptions(**options), **fields), output)  # type: ignore[arg-type]


def test_philox_meets_its_published_vectors() -> None:
    """kat_vectors of the authors' Random123, philox4x64-10."""
    ones = 2**64 - 1
    pi = (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89)
    assert oracle.philox((0, 0, 0, 0), (0, 0)) == (
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    )
    assert oracle.philox((ones,) * 4, (ones, ones)) == (
        0x87B092C3013FE90B,
        0x438C3C67BE8D0224,
        0x9CC7D7C69CD777B6,
        0xA09CAEBF594F0BA0,
    )
    assert oracle.philox(pi, (0x452821E638D01377, 0xBE5466CF34E90C6C)) == (
        0xA528F45403E61D95,
        0x38C72DBD566E9788,
        0xA5A1610E72FD18B5,
        0x57BD43B5E52B7FE6,
    )


def test_penalties_and_masks_by_hand() -> None:
    low = -math.inf
    assert scores([2, 2]) == LOGITS
    assert scores([2], repetition_penalty=2.0) == [1.0, -2.0, 0.25, 0.5, 3.0]
    assert scores([2, 2, 4], frequency_penalty=0.5, presence_penalty=1.0) == [2.0, -1.0, -1.5, 0.5, 1.5]
    assert scores([2], repetition_penalty=2.0, frequency_penalty=1.0)[2] == -0.75  # in this order
    assert scores([], logit_bias={1: 5.0}) == [2.0, 4.0, 0.5, 0.5, 3.0]
    assert scores([], bad_words=((4,), (1, 2), (0, 3))) == [2.0, -1.0, low, 0.5, low]
    assert scores([3], bad_words=((1, 3, 0), (1, 3))) == [low, -1.0, 0.5, 0.5, 3.0]
    assert scores([], bad_words=((2, 0, 1, 4),)) == LOGITS  # longer than what stands there
    assert scores([], allowed_ids=frozenset({0, 2})) == [2.0, low, 0.5, low, low]
    assert scores([0], eos_ids=frozenset({4}), min_tokens=2)[4] == low
    assert scores([0, 0], eos_ids=frozenset({4}), min_tokens=2)[4] == 3.0


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"temperature": 1e-6}, {4}),
        ({"temperature": 1.0}, {0, 1, 2, 3, 4}),
        ({"temperature": 1.0, "top_k": 3}, {0, 2, 4}),  # of the two equal ones the lower id
        ({"temperature": 1.0, "top_p": 0.6}, {4}),  # 0.645 of the mass
        ({"temperature": 1.0, "top_p": 0.65}, {0, 4}),
        ({"temperature": 1.0, "top_p": 0.9}, {0, 2, 4}),  # 0.882, then 0.935
        ({"temperature": 1.0, "min_p": 0.08}, {0, 2, 3, 4}),
        ({"temperature": 2.0, "top_k": 2, "top_p": 0.01}, {4}),
    ],
)
def test_what_may_be_drawn_by_hand(options: dict[str, float], kept: set[int]) -> None:
    drawn = {oracle.pick(LOGITS, SamplingOptions(**options, seed=7), position) for position in range(600)}  # type: ignore[arg-type]
    assert drawn == kept


def test_draws_follow_the_softmax() -> None:
    counts = Counter(oracle.pick(LOGITS, SamplingOptions(temperature=1.0, seed=3), t) for t in range(4000))
    total = sum(math.exp(logit) for logit in LOGITS)
    for token, logit in enumerate(LOGITS):
        expected = 4000 * math.exp(logit) / total
        assert abs(counts[token] - expected) < 4 * math.sqrt(expected)


def test_nothing_is_picked_where_all_is_masked() -> None:
    assert oracle.pick([-math.inf] * 3, SamplingOptions(temperature=1.0), 0) is None
    assert oracle.pick([-math.inf, -900.0, -math.inf], SamplingOptions(temperature=1.0), 0) == 1


def test_log_probabilities_by_hand() -> None:
    got = oracle.logprob([0.0, math.log(2.0), -math.inf, 0.0], 3, 3)
    assert (got.token, got.logit) == (3, 0.0)
    assert got.logprob == pytest.approx(math.log(0.25))
    assert [token for token, _ in got.top] == [1, 0, 3]
    assert [value for _, value in got.top] == pytest.approx([math.log(0.5), math.log(0.25), math.log(0.25)])


def test_the_first_rule_that_ends_an_output_names_the_reason() -> None:
    everything = replace(
        REQUEST, max_tokens=2, eos_ids=frozenset({3}), stop_ids=frozenset({3, 4}), stop=EndsWith([(3,), (4,), (2,)])
    )
    limit = 4  # tokens, which two tokens of output reach
    reasons = {token: oracle.finish_reason(everything, [0, token], limit) for token in (3, 4, 2, 0)}
    assert reasons == {3: "stop", 4: "stop_token", 2: "stop_string", 0: "length"}
    assert oracle.finish_reason(REQUEST, [0, 3], limit) == "context_limit"
    assert oracle.finish_reason(REQUEST, [0], limit) is None


def test_the_toy_constraint_does_what_it_says() -> None:
    constraint = Residues((frozenset({1}), frozenset({0, 1}))).follow()
    assert [bool(ok) for ok in constraint.allowed()[:4]] == [False, True, False, True]
    assert constraint.accepts([3, 5, 2]) == 2  # odd, then anything, then odd again
    constraint.advance(3)
    assert all(constraint.allowed())
    with pytest.raises(ValueError, match="forbidden"):
        Residues((frozenset(), frozenset())).follow().advance(1)
