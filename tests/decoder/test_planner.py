import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.planner import PassCost, plan_width

seconds = st.dictionaries(st.sampled_from([1, 2, 4, 8, 16, 33]), st.floats(0.001, 1.0), min_size=1)
chances = st.lists(st.lists(st.floats(0.0, 1.0), max_size=8), min_size=1, max_size=4)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(chances, seconds, st.integers(0, 3))
def test_no_other_width_promises_more_tokens_a_second(
    survivals: list[list[float]], table: dict[int, float], idle: int
) -> None:
    cost = PassCost(table)
    rows = len(survivals) + idle

    def rate(width: int) -> float:
        return sum(1 + sum(row[:width]) for row in survivals) / cost(rows * (width + 1))

    chosen = plan_width(survivals, cost, rows=rows)
    widths = range(max(map(len, survivals)) + 1)
    assert chosen in widths
    assert rate(chosen) == pytest.approx(max(map(rate, widths)), rel=1e-9)


def test_free_width_drafts_all_that_may_hold() -> None:
    assert plan_width([[0.9, 0.5, 1e-6], [0.2]], PassCost(), rows=2) == 3
    assert plan_width([[0.9, 0.0]], PassCost(), rows=1) == 1


def test_nothing_proposed_or_nothing_worth_it_is_plain_decoding() -> None:
    assert plan_width([[], []], PassCost(), rows=2) == 0
    assert plan_width([[0.3, 0.1]], PassCost({1: 1.0, 2: 2.0, 4: 4.0}), rows=1) == 0


def test_a_draft_crosses_a_step_of_the_cost_where_enough_stands_behind_it() -> None:
    cost = PassCost({1: 1.0, 2: 1.9, 4: 2.0})
    assert plan_width([[0.8, 0.79, 0.78]], cost, rows=1) == 3
    assert plan_width([[0.8, 0.1, 0.1]], cost, rows=1) == 0


def test_the_cost_is_linear_between_points_and_proportional_beyond() -> None:
    cost = PassCost({2: 1.0, 4: 3.0})
    assert [cost(tokens) for tokens in (1, 2, 3, 4, 8)] == [1.0, 1.0, 2.0, 3.0, 6.0]
