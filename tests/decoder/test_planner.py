import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.planner import Plan, plan_pass

chances = st.lists(st.lists(st.floats(0.0, 1.0), max_size=8), min_size=1, max_size=4)
costs = st.lists(st.floats(0.5, 4.0), min_size=9, max_size=9)


def plan(survivals: list[list[float]], *seconds: float, drafting_s: float = 0.0) -> Plan:
    """A plan where passes of 1, 2, ... columns cost these seconds."""
    return plan_pass(survivals, np.arange(1, len(seconds) + 1), np.array(seconds), drafting_s=drafting_s)


def expected(row: list[float], width: int) -> float:
    """Tokens that a row commits in a pass of so many columns."""
    return 1 + sum(row[: width - 1])


@settings(deadline=None, max_examples=200, derandomize=True)
@given(chances, costs)
def test_no_other_width_promises_more(survivals: list[list[float]], seconds: list[float]) -> None:
    def mean_rate(width: int) -> float:
        return float(np.exp(np.mean([np.log(expected(row, width)) for row in survivals]))) / seconds[width - 1]

    chosen = plan(survivals, *seconds).width
    assert chosen == 1 or any(survivals)
    if any(survivals):
        assert mean_rate(chosen) * 1.0305 >= max(map(mean_rate, range(1, 10)))


@settings(deadline=None, max_examples=200, derandomize=True)
@given(chances, costs)
def test_no_plan_promises_less_than_plain_decoding(survivals: list[list[float]], seconds: list[float]) -> None:
    chosen = plan(survivals, *seconds).width
    rate = sum(expected(row, chosen) for row in survivals) / seconds[chosen - 1]
    assert rate >= len(survivals) / seconds[0] * (1 - 1e-9)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(chances, costs)
def test_drafts_together_pay_for_the_time_that_they_take(survivals: list[list[float]], seconds: list[float]) -> None:
    chosen, prices = plan(survivals, *seconds)
    slower = seconds[chosen - 1] / seconds[0] - 1
    paying = [price for row, price in zip(survivals, prices, strict=True) if sum(row[: chosen - 1]) > 1e-6]
    if paying:
        assert sum(prices) == pytest.approx(len(survivals) * slower, abs=1e-6)
    assert all(price == 0 for row, price in zip(survivals, prices, strict=True) if not row)


def test_what_is_free_is_drafted() -> None:
    assert plan([[0.9, 0.5, 1e-6], [0.2]], 1, 1, 1, 1, 1).width == 4
    assert plan([[0.9, 0.0]], 1, 1, 1).width == 2


def test_nothing_proposed_or_nothing_worth_it_is_plain_decoding() -> None:
    assert plan([[], []], 1.0, 0.5) == Plan(1, (0.0, 0.0))
    assert plan([[0.3, 0.1]], 1, 2, 3).width == 1


def test_a_gain_within_the_noise_of_the_costs_is_none() -> None:
    assert plan([[0.22]], 1, 1.2).width == 1
    assert plan([[0.25]], 1, 1.2).width == 2


def test_a_cliff_in_the_cost_is_crossed_where_enough_stands_behind_it() -> None:
    cliff = (1, 1.05, 1.1, 1.6, 1.65, 1.7, 1.75, 1.8)
    assert plan([[0.6**depth for depth in range(1, 8)]], *cliff).width == 3
    assert plan([[0.95**depth for depth in range(1, 8)]], *cliff).width == 8


def test_a_wider_pass_that_is_cheaper_is_padded_to() -> None:
    assert plan([[0.9, 0.9]], 1, 1.2, 1.8, 1.9, 1.4).width == 5


def test_sixteen_rows_draft_nothing_where_each_column_costs_as_much_again() -> None:
    assert plan([[0.9, 0.8, 0.7]] * 16, 1, 2, 3, 4).width == 1


def test_one_row_with_a_sure_draft_does_not_hold_up_many_without() -> None:
    sure, hopeless = [0.99] * 8, [0.0]
    dear = (1, 1.3, 1.3, 1.3, 1.3, 1.3, 1.3, 1.3, 1.3)
    assert plan([sure], *dear).width == 9
    assert plan([sure, hopeless], *dear).width == 9
    assert plan([sure, *[hopeless] * 15], *dear).width == 1


def test_a_pass_that_may_be_cheaper_than_expected_is_tried_at_the_expected_price() -> None:
    widths, seconds = np.array([1, 2]), np.array([1.0, 2.0])
    assert plan_pass([[0.9]], widths, seconds).width == 1
    assert plan_pass([[0.9]], widths, seconds, hope=np.array([1.0, 0.8])) == (2, (1.0,))


def test_the_price_is_shared_by_what_each_row_asked_for() -> None:
    chosen, (sure, same, unsure, idle) = plan([[0.9, 0.8], [0.9, 0.8], [0.1], []], 1, 1.1, 1.1)
    assert chosen == 3
    assert sure == same > unsure > idle == 0


def test_the_time_of_drafting_is_paid_by_those_that_drafted() -> None:
    assert plan([[0.0], []], 1.0, 2.0, drafting_s=0.1).prices == pytest.approx((0.2, 0.0))
    assert plan([[0.0]], 1.0, 2.0, drafting_s=100.0).prices == (1.0,)
