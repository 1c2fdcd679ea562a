"""Whole answers simulated: what drafting may lose, and that it is taken up again where it pays."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from refdraft.decoder.planner import plan_pass
from refdraft.decoder.stake import Stake

ANSWER = 256  # tokens
WIDTHS = np.arange(1, 18)
# The default model on one thread, in ms, and a GPU, where width is nearly free.
FLOAT32 = np.interp(WIDTHS, [1, 2, 3, 4, 6, 7, 8, 12, 15, 16, 17], [54, 56, 59, 84, 94, 111, 111, 142, 164, 111, 116])
BFLOAT16 = np.interp(WIDTHS, [1, 2, 3, 4, 6, 8, 12, 16, 17], [50, 74, 84, 90, 113, 129, 164, 203, 212])
COSTS = {"float32": FLOAT32 / FLOAT32[0], "bfloat16": BFLOAT16 / BFLOAT16[0], "flat": 1 + 0.003 * (WIDTHS - 1)}

Propose = Callable[[int], tuple[list[float], int]]  # at a token: what is claimed, and how many draft tokens hold


def decode(
    propose: Propose, cost: NDArray[np.float64], *, tokens: int = ANSWER, drafting_s: float = 0.0
) -> list[float]:
    """Simulate an answer of one request: the time of each of its tokens, of which plain decoding takes 1 each."""
    stake, times = Stake(), list[float]()
    while len(times) < tokens:
        claims, hold = ([], 0) if stake.resting else propose(len(times))
        plan = plan_pass([claims], WIDTHS, cost, drafting_s=drafting_s if claims else 0.0)
        won = min(hold, len(claims), plan.width - 1)
        seconds = float(cost[plan.width - 1]) + (drafting_s if claims else 0.0)
        times += [seconds / (won + 1)] * (won + 1)
        stake.settle(won, plan.prices[0])
    return times


def falling(chance: float) -> list[float]:
    """Survivals of 16 tokens, each of which holds with the same chance."""
    return [chance**depth for depth in range(1, 17)]


def honest(chance: float, seed: int) -> Propose:
    rng = np.random.default_rng(seed)
    return lambda token: (falling(chance), int(rng.geometric(1 - chance)) - 1)


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS.keys())
@pytest.mark.parametrize("claimed", [1.0, 0.9, 0.7, 0.5])
def test_a_drafter_that_is_always_wrong_costs_five_percent_at_most(claimed: float, cost: NDArray[np.float64]) -> None:
    assert sum(decode(lambda token: (falling(claimed), 0), cost)) < 1.05 * ANSWER


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    st.lists(st.tuples(st.floats(0.3, 1.0), st.sampled_from([0, 0, 0, 0, 0, 1, 2, 16])), min_size=1, max_size=40),
    st.sampled_from(sorted(COSTS)),
)
def test_no_turns_of_luck_cost_more_than_five_percent(turns: list[tuple[float, int]], cost: str) -> None:
    def propose(token: int) -> tuple[list[float], int]:
        claimed, hold = turns[token % len(turns)]
        return falling(claimed), hold

    times = decode(propose, COSTS[cost])
    assert sum(times) < 1.05 * len(times)


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS.keys())
def test_a_long_answer_loses_less_and_less(cost: NDArray[np.float64]) -> None:
    times = decode(lambda token: (falling(0.9), 0), cost, tokens=8 * ANSWER)
    assert sum(times[-ANSWER:]) < 1.02 * ANSWER


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS.keys())
def test_where_nothing_can_be_copied_hardly_anything_is_lost(cost: NDArray[np.float64]) -> None:
    rng = np.random.default_rng(0)
    times = decode(lambda token: (falling(0.05), int(rng.random() < 0.05)), cost, drafting_s=0.005)
    assert sum(times) < 1.03 * ANSWER


@pytest.mark.parametrize("seed", range(5))
def test_odds_that_are_right_are_left_alone(seed: int) -> None:
    assert sum(decode(honest(0.8, seed), COSTS["flat"])) < 0.3 * ANSWER
    assert sum(decode(honest(0.8, seed), COSTS["float32"])) < 0.6 * ANSWER
    assert sum(decode(honest(0.9, seed), COSTS["bfloat16"])) < 0.6 * ANSWER


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS.keys())
def test_drafting_is_taken_up_again_behind_a_bad_stretch(cost: NDArray[np.float64]) -> None:
    times = decode(lambda token: (falling(0.9), 16 if token >= 100 else 0), cost, tokens=3 * ANSWER)
    assert sum(times[:100]) < 1.1 * 100
    assert sum(times[-ANSWER:]) < 0.35 * ANSWER


def test_a_drafter_that_finds_nothing_worth_its_time_is_asked_seldom() -> None:
    asked: list[int] = []

    def propose(token: int) -> tuple[list[float], int]:
        asked.append(token)
        return [0.01], 0

    times = decode(propose, COSTS["float32"], tokens=4 * ANSWER, drafting_s=0.1)
    assert len(asked) < 0.15 * len(times)
    assert sum(times) < 1.02 * len(times)
