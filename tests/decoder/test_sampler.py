"""What a request can ask of one choice, and what happens where no choice is left."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from refdraft.decoder.request import DecodeRequest
from refdraft.decoder.sampler import Sampler, log_probability
from refdraft.decoder.sampling import SamplingOptions
from refdraft.errors import InvalidRequestError

VOCABULARY = 6
LOGITS = np.array([0.5, 3.0, 1.0, 3.0, -1.0, 2.0], np.float32)


def sampler(**changes: Any) -> Sampler:
    return Sampler(DecodeRequest((0,), 10, **changes), VOCABULARY)


class Alternating:
    """Even ids and odd ids take turns, even ones first."""

    def __init__(self) -> None:
        self._next = 0

    def allowed(self) -> NDArray[np.bool_]:
        return np.array([token % 2 == self._next for token in range(VOCABULARY)])

    def accepts(self, tokens: Sequence[int]) -> int:
        raise NotImplementedError

    def advance(self, token: int) -> None:
        assert token % 2 == self._next
        self._next = 1 - self._next


def write(sampler: Sampler, count: int) -> list[int]:
    written = []
    for _ in range(count):
        written.append(sampler.choose(LOGITS))
        sampler.advance(written[-1])
    return written


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert write(sampler(), 2) == [1, 1]


def test_a_constraint_follows_the_output() -> None:
    assert write(sampler(constraint=Alternating()), 4) == [2, 1, 2, 1]


def test_penalties_count_every_token() -> None:
    options = SamplingOptions(frequency_penalty=1.5)
    assert write(sampler(sampling=options), 6) == [1, 3, 5, 1, 3, 2]


def test_ends_cannot_be_chosen_before_min_tokens() -> None:
    ends: dict[str, Any] = {"eos_ids": frozenset({1}), "stop_ids": frozenset({3}), "min_tokens": 2}
    assert write(sampler(**ends), 3) == [5, 5, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_token_left_is_taken(temperature: float) -> None:
    options = SamplingOptions(temperature=temperature, allowed_ids=frozenset({4}), top_p=0.1, min_p=1.0, top_k=1)
    assert write(sampler(sampling=options), 5) == [4] * 5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_token_left_is_a_clear_error(temperature: float) -> None:
    options = SamplingOptions(temperature=temperature, allowed_ids=frozenset({1}))
    with pytest.raises(InvalidRequestError, match="sampling: no token is left at output token 1"):
        sampler(sampling=options, constraint=Alternating()).choose(LOGITS)
    ends: dict[str, Any] = {"eos_ids": frozenset({1}), "min_tokens": 1}
    with pytest.raises(InvalidRequestError, match="no token is left"):
        sampler(sampling=options, **ends).choose(LOGITS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [[1.0, math.nan, 2.0], [-math.inf] * 3, [1.0, math.inf, 2.0]])
def test_logits_without_a_finite_maximum_raise(bad: list[float], temperature: float) -> None:
    one = Sampler(DecodeRequest((0,) * 9, 10, sampling=SamplingOptions(temperature=temperature)), 3)
    with pytest.raises(FloatingPointError, match=r"position 9: .* NaN .*float16"):
        one.choose(np.array(bad, np.float32))


@pytest.mark.parametrize(
    "options",
    [
        SamplingOptions(logit_bias={VOCABULARY: 1.0}),
        SamplingOptions(bad_words=[[1, VOCABULARY]]),
        SamplingOptions(allowed_ids=frozenset({-1})),
    ],
)
def test_ids_beyond_the_vocabulary_are_refused(options: SamplingOptions) -> None:
    with pytest.raises(InvalidRequestError, match="beyond the target's vocabulary of 6"):
        sampler(sampling=options)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    st.lists(st.floats(-30, 30, width=32) | st.just(-math.inf), min_size=1, max_size=12),
    st.integers(0, 14),
    st.data(),
)
def test_log_probabilities_are_the_targets_own(values: list[float], top: int, data: st.DataObject) -> None:
    values[0] = max(values[0], -30.0)
    token = data.draw(st.sampled_from([i for i, value in enumerate(values) if value > -math.inf]))
    found = log_probability(np.array(values, np.float32), token, top)
    total = math.fsum(math.exp(value) for value in values)
    expected = {i: math.log(math.exp(value) / total) for i, value in enumerate(values) if value > -math.inf}
    assert found.token == token
    assert found.logit == values[token]
    assert math.isclose(found.logprob, expected[token], rel_tol=1e-9, abs_tol=1e-9)
    ranked = sorted(expected, key=lambda i: (-values[i], i))[:top]
    assert [i for i, _ in found.top] == ranked
    assert all(math.isclose(logprob, expected[i], rel_tol=1e-9, abs_tol=1e-9) for i, logprob in found.top)


def test_log_probabilities_come_only_when_asked_for() -> None:
    assert sampler().logprob(LOGITS, 1) is None
    found = sampler(top_logprobs=0).logprob(LOGITS, 1)
    assert found is not None
    assert found.top == ()
