from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder import cost as cost_module
from refdraft.decoder.cost import PassCost, measure_passes
from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.target import Target
from tests.decoder.conftest import CONTEXT_LIMIT, Load

# Seconds by tokens with a cliff and a dip, as CPU kernels have them.
TABLE = {1: 1.0, 2: 1.05, 3: 1.1, 4: 1.6, 8: 2.1, 12: 2.6, 16: 2.0, 32: 2.6, 64: 4.0}


def seconds(cost: PassCost, width: int, *, rows: int = 1, cells: int = 100) -> float:
    return float(cost(rows, np.array([width]), np.array([cells]))[0])


def relative(cost: PassCost, width: int) -> float:
    return seconds(cost, width) / seconds(cost, 1)


def test_measured_points_are_kept_and_others_lie_between() -> None:
    cost = PassCost(TABLE)
    assert [seconds(cost, width) for width in (3, 4, 12, 16)] == [1.1, 1.6, 2.6, 2.0]
    assert seconds(cost, 14) == pytest.approx(2.3)
    assert seconds(cost, 4, rows=4) == seconds(cost, 16)
    assert seconds(cost, 32, rows=4) == pytest.approx(8.0)


def test_rows_pay_for_the_cells_they_read() -> None:
    cost = PassCost({1: 1.0, 8: 1.0}, row_cell=0.001, column_cell=0.0001)
    assert seconds(cost, 1, cells=1000) == pytest.approx(2.1)
    assert seconds(cost, 2, cells=1000) == pytest.approx(2.2)
    assert seconds(cost, 2, rows=4, cells=1000) == pytest.approx(5.8)


def test_without_a_measurement_width_stays_free() -> None:
    cost = PassCost()
    cost.observe(1, 8, 100, 7.0)
    assert seconds(cost, 64, rows=16) == seconds(cost, 1) == 1.0


def test_a_stall_of_the_machine_moves_nothing_far() -> None:
    cost = PassCost(TABLE)
    before = relative(cost, 3)
    cost.observe(1, 3, 100, 11.0)
    assert relative(cost, 3) == pytest.approx(before, rel=0.05)


def test_a_machine_that_slows_down_does_not_make_unused_widths_look_cheap() -> None:
    cost = PassCost(TABLE)
    before = relative(cost, 16)
    for _ in range(100):
        cost.observe(1, 1, 100, 2.0)
    assert seconds(cost, 1) == pytest.approx(2.0, rel=0.01)
    assert relative(cost, 16) > 0.8 * before


@settings(deadline=None, max_examples=30, derandomize=True)
@given(
    st.dictionaries(st.integers(1, 8), st.floats(0.5, 2.0), min_size=8, max_size=8),
    st.integers(0, 1000),
)
def test_serving_finds_what_passes_really_cost(truth: dict[int, float], seed: int) -> None:
    cost, rng = PassCost(TABLE), np.random.default_rng(seed)
    for _ in range(150):
        for width in truth:
            stall = 10.0 if rng.random() < 0.02 else 1.0
            cost.observe(1, width, 100, truth[width] * stall * rng.lognormal(0.0, 0.03))
    for width in truth:
        assert relative(cost, width) == pytest.approx(truth[width] / truth[1], rel=0.2)


def test_a_width_not_run_for_long_is_doubted_more_and_more_until_it_is_tried() -> None:
    cost, widths = PassCost(TABLE), np.array([1, 4, 16])
    hopes = []
    for _ in range(3):
        for _ in range(500):
            cost.observe(1, 1, 100, 1.0)
        hopes.append(cost.hope(1, widths).tolist())
    assert hopes == [[1.0, 0.875, 0.875], [1.0, 0.75, 0.75], [1.0, 0.75, 0.75]]
    cost.observe(1, 4, 100, 1.6)
    assert cost.hope(1, widths).tolist() == pytest.approx([1.0, 1.0, 0.75], abs=0.01)


def machine(row_cell: float, column_cell: float) -> Callable[..., float]:
    def time_pass(target: Target, rows: int, width: int, length: int) -> float:
        products = np.interp(rows * width, list(TABLE), list(TABLE.values()))
        return float(products + rows * (length + width) * (row_cell + width * column_cell))

    return time_pass


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.floats(0.0, 0.01), st.floats(0.0, 0.001))
def test_few_passes_tell_the_cost_of_all(load_tiny: Load, row_cell: float, column_cell: float) -> None:
    target = load_tiny(slots=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost_module, "time_pass", machine(row_cell, column_cell))
        cost = measure_passes(target, 33)
    for rows, width, length in ((1, 1, 10), (1, 16, 90), (3, 4, 500), (2, 8, 2000), (3, 1, 64)):
        expected = machine(row_cell, column_cell)(target, rows, width, length)
        assert seconds(cost, width, rows=rows, cells=length + width) == pytest.approx(expected, rel=1e-6)


def test_a_slow_target_has_few_passes_timed(load_tiny: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []

    def time_pass(target: Target, rows: int, width: int, length: int) -> float:
        timed.append(width)
        return 1.0

    monkeypatch.setattr(cost_module, "time_pass", time_pass)
    measure_passes(load_tiny(slots=3), 33, budget_s=0.0)
    assert len(timed) <= 5
    assert set(timed) == {1, 16}


@pytest.mark.parametrize(("slots", "context_limit", "widest"), [(1, 2, 2), (3, CONTEXT_LIMIT, 33), (2, 20, 5)])
def test_any_shape_of_engine_can_be_measured(load_tiny: Load, slots: int, context_limit: int, widest: int) -> None:
    target = load_tiny(slots=slots, context_limit=context_limit)
    engine = Engine(target, EngineConfig(max_draft_tokens=widest - 1, prefill_chunk=16))
    engine.calibrate()
    for width in range(1, widest + 1):
        assert 0 < seconds(engine.cost, width, rows=slots, cells=context_limit) < 5.0


def test_an_engine_that_never_drafts_measures_nothing(load_tiny: Load) -> None:
    engine = Engine(load_tiny(slots=1), EngineConfig(max_draft_tokens=0))
    engine.calibrate()
    assert seconds(engine.cost, 1) == seconds(engine.cost, 16) == 1.0
