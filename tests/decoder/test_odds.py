import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refdraft.decoder import odds
from refdraft.decoder.odds import CANDIDATE_FEATURES, NONE_FEATURES, WEIGHTS, chances, learn, prior

NONE = np.arange(WEIGHTS - NONE_FEATURES, WEIGHTS, dtype=np.int16)


def features(*rows: int) -> np.ndarray:
    """Candidates of which each has features of its own, beginning at a number."""
    return np.array([np.arange(row, row + CANDIDATE_FEATURES) for row in rows], np.int16)


def judge(weights: odds.Weights, rows: np.ndarray, biases: list[float] | None = None) -> tuple[float, list[float]]:
    out = np.zeros(len(rows))
    none = chances(weights, np.array(biases or [0.0] * len(rows)), rows, NONE, len(rows), out)
    return none, out.tolist()


def teach(weights: odds.Weights, rows: np.ndarray, right: list[bool], times: int) -> None:
    for _ in range(times):
        none, shares = judge(weights, rows)
        learn(weights, rows, NONE, len(rows), np.array(shares), none, np.array(right))


@given(st.lists(st.integers(0, WEIGHTS - CANDIDATE_FEATURES), max_size=6))
def test_one_of_the_candidates_comes_next_or_none(starts: list[int]) -> None:
    rows = features(*starts) if starts else np.zeros((0, CANDIDATE_FEATURES), np.int16)
    none, shares = judge(prior(), rows)
    assert abs(none + sum(shares) - 1) < 1e-9
    assert min([none, *shares]) >= 0


def test_what_came_next_becomes_likelier_and_what_never_does_fades() -> None:
    weights, rows = prior(), features(0, 40, 80)
    _, before = judge(weights, rows)
    teach(weights, rows, [True, False, False], 100)
    none, after = judge(weights, rows)
    assert after[0] > max(0.7, before[0])
    teach(weights, rows, [False, False, False], 400)
    none, _ = judge(weights, rows)
    assert none > 0.9, "the world has changed: old observations fade"


def test_a_bias_shifts_the_odds_of_its_candidate_alone() -> None:
    weights, rows = prior(), features(0, 40)
    none, (first, second) = judge(weights, rows)
    biased_none, (biased_first, biased_second) = judge(weights, rows, [1.0, 0.0])
    assert biased_first > first
    assert abs(biased_second / biased_none - second / none) < 1e-9


def test_every_request_starts_from_a_prior_of_its_own() -> None:
    weights = prior()
    teach(weights, features(0), [True], 10)
    assert (prior().values != weights.values).any()
    assert len(prior().values) == WEIGHTS
