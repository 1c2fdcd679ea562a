"""Without seeds: drafted outputs come as often as the target's own probabilities say.

A target of five tokens is small enough to write down the probability of every output. More than 200,000 outputs are
drawn with drafting on and compared with it, and wrong rules of acceptance must not get through. Seeds are fixed, so
a test that passes today passes tomorrow. `pytest -s` shows the figures.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from refdraft.decoder import engine, sampling
from refdraft.decoder.draft import Draft
from refdraft.decoder.request import DecodeRequest
from refdraft.decoder.sampling import SamplingOptions, uniform
from refdraft.decoder.verify import verify
from tests.lossless.oracle import MASKED, scores
from tests.lossless.scripted import EOS, LONGEST, VOCABULARY, Drawn, ScriptedTarget, draw

SAMPLES = 70_000  # of each request: 210,000
FEW_SAMPLES = 4_000  # a wrong rule shows in far fewer
ALPHA = 1e-4  # chance of a true distribution to be refused

Output = tuple[int, ...]


def request(prompt: Sequence[int], options: SamplingOptions, *, min_tokens: int = 0) -> DecodeRequest:
    return DecodeRequest(prompt, 10, sampling=options, eos_ids=frozenset([EOS]), min_tokens=min_tokens)


REQUESTS = {
    "temperature": request((3, 1, 2), SamplingOptions(temperature=1.0)),
    "truncated": request((4,), SamplingOptions(temperature=1.4, top_k=4, top_p=0.93, min_p=0.05)),
    "penalised": request(
        (2, 2),
        SamplingOptions(
            repetition_penalty=1.3,
            frequency_penalty=0.6,
            presence_penalty=-0.4,
            logit_bias={1: 0.8},
            bad_words=[[3, 4]],
            temperature=0.8,
        ),
        min_tokens=2,
    ),
}


def enumerate_outputs(target: ScriptedTarget, request: DecodeRequest) -> dict[Output, float]:
    """Every possible output with its probability."""
    outputs: dict[Output, float] = {}
    unfinished: dict[Output, float] = {(): 1.0}
    while unfinished:
        output, chance = unfinished.popitem()
        logits = target.logits([*request.prompt, *output])
        for token, share in enumerate(distribution(scores([float(x) for x in logits], request, output), request)):
            if share > 0.0:
                ended = token == EOS or len(output) + 1 == LONGEST
                (outputs if ended else unfinished)[(*output, token)] = chance * share
    assert math.isclose(math.fsum(outputs.values()), 1.0)
    return outputs


def distribution(scores: Sequence[float], request: DecodeRequest) -> list[float]:
    """The probability of each token, from the definitions of top_k, top_p and min_p."""
    options = request.sampling
    ranked = sorted((token for token in range(VOCABULARY) if scores[token] > MASKED), key=lambda token: -scores[token])
    ranked = ranked[: options.top_k or VOCABULARY]
    weights = {token: math.exp(scores[token] / options.temperature) for token in ranked}
    whole, nucleus = sum(weights.values()), 0.0
    kept: dict[int, float] = {}
    for token in ranked:
        if nucleus < options.top_p * whole and weights[token] >= options.min_p * weights[ranked[0]]:
            kept[token] = weights[token]
        nucleus += weights[token]
    return [kept.get(token, 0.0) / sum(kept.values()) for token in range(VOCABULARY)]


@dataclass(frozen=True)
class Fit:
    """How well counts fit probabilities.

    Attributes:
        p_value: of the chi-square test; outputs that are expected fewer than five times are counted as one.
        variation: total variation between what came and what should come.
        noise: what the variation of as many true draws exceeds with a chance of ALPHA at most.
    """

    p_value: float
    variation: float
    noise: float

    @property
    def good(self) -> bool:
        return self.p_value > ALPHA and self.variation < self.noise


def fit(counts: Mapping[Output, int], probabilities: Mapping[Output, float]) -> Fit:
    number = sum(counts.values())
    impossible = sum(count for output, count in counts.items() if output not in probabilities)
    seen = np.array([counts.get(output, 0) for output in probabilities], np.float64)
    expected = np.array(list(probabilities.values())) * number
    variation = (float(np.abs(seen - expected).sum()) + impossible) / (2 * number)
    # The mean is at most this by Jensen's inequality; one draw moves the variation by 1 / number at most (McDiarmid).
    mean = float(np.sqrt(expected * (1 - expected / number)).sum()) / (2 * number)
    noise = mean + math.sqrt(-math.log(ALPHA) / (2 * number))
    rare = expected < 5
    seen, expected = (np.append(values[~rare], values[rare].sum()) for values in (seen, expected))
    seen, expected = seen[expected > 0], expected[expected > 0]
    statistic = math.inf if impossible else float(((seen - expected) ** 2 / expected).sum())
    return Fit(chi_square_survival(statistic, len(expected) - 1), variation, noise)


def chi_square_survival(statistic: float, degrees: int) -> float:
    """The chance of a chi-square variable of so many degrees of freedom to exceed `statistic`."""
    half, point = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half, point))


@pytest.fixture(scope="module")
def target() -> ScriptedTarget:
    return ScriptedTarget.random()


@pytest.fixture(scope="module")
def drawn(target: ScriptedTarget) -> dict[str, Drawn]:
    """What comes of all requests, decoded side by side."""
    return dict(zip(REQUESTS, draw(target, list(REQUESTS.values()), SAMPLES), strict=True))


@pytest.mark.parametrize("name", REQUESTS)
def test_drafted_outputs_follow_the_targets_distribution(
    target: ScriptedTarget, drawn: dict[str, Drawn], name: str
) -> None:
    probabilities, outputs = enumerate_outputs(target, REQUESTS[name]), drawn[name]
    found = fit(outputs.counts, probabilities)
    print(f"\n{name}: {SAMPLES} outputs of {len(probabilities)} possible ones, {found}")
    print(f"drafted {outputs.drafted}, accepted {outputs.accepted}")
    assert outputs.counts.total() == SAMPLES
    assert found.good
    assert outputs.accepted > SAMPLES / 2
    assert outputs.drafted - outputs.accepted > SAMPLES


Rule = Callable[[pytest.MonkeyPatch], None]


def the_right_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes nothing: what is found with the wrong ones is no matter of few samples."""


def discard_and_redraw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no draft token is accepted, the sample that said so is thrown away and another one drawn."""
    redrawing = False

    def numbers(seed: int, position: int) -> float:
        return uniform(seed + (redrawing << 32), position)

    def walk(draft: Draft, choose: Callable[[int], int]) -> Iterator[tuple[int, int | None]]:
        nonlocal redrawing
        column = 0
        for token, node in verify(draft, choose):
            if node is None and column - 1 in draft.parents:
                redrawing = True
                token = choose(column)
                redrawing = False
            yield token, node
            column = 0 if node is None else node + 1

    monkeypatch.setattr(sampling, "uniform", numbers)
    monkeypatch.setattr(engine, "verify", walk)


def one_number_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens of a step are drawn with the number of its first."""
    first: float | None = None

    def numbers(seed: int, position: int) -> float:
        nonlocal first
        first = uniform(seed, position) if first is None else first
        return first

    def walk(draft: Draft, choose: Callable[[int], int]) -> Iterator[tuple[int, int | None]]:
        nonlocal first
        first = None
        yield from verify(draft, choose)

    monkeypatch.setattr(sampling, "uniform", numbers)
    monkeypatch.setattr(engine, "verify", walk)


def cells_left_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tree wrote to the cache is not closed up to the accepted path."""
    monkeypatch.setattr(ScriptedTarget, "keep", lambda *arguments: None)


WRONG_RULES = (discard_and_redraw, one_number_a_step, cells_left_where_they_are)


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("rule", [the_right_rule, *WRONG_RULES])
def test_a_wrong_rule_is_found_out(
    target: ScriptedTarget, monkeypatch: pytest.MonkeyPatch, rule: Rule, name: str
) -> None:
    rule(monkeypatch)
    [few] = draw(target, [REQUESTS[name]], FEW_SAMPLES)
    found = fit(few.counts, enumerate_outputs(target, REQUESTS[name]))
    print(f"\n{name}, {rule.__name__}: {FEW_SAMPLES} outputs, {found}")
    assert found.good == (rule not in WRONG_RULES)


def test_the_chi_square_survival_function_meets_tables() -> None:
    """Upper 5 % and 0.1 % points, as printed in every table."""
    for degrees, five_percent, one_permille in [(1, 3.841, 10.828), (10, 18.307, 29.588), (100, 124.342, 149.449)]:
        assert chi_square_survival(five_percent, degrees) == pytest.approx(0.05, rel=1e-3)
        assert chi_square_survival(one_permille, degrees) == pytest.approx(0.001, rel=1e-3)
    assert chi_square_survival(math.inf, 7) == 0.0
