"""Replays small enough to count by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.odds import SurvivalOdds
from refdraft.decoder.peers.oracle import CopyOracle
from refdraft.decoder.reliability import Reliability
from refdraft.decoder.replay import Method, RefdraftMethod, ReplayResult, Trace, replay

CLASSES = np.arange(1, 101, dtype=np.int32)  # no token stands for another
COPY = Trace([1, 2, 3, 4, 5, 6], [], [1, 2, 3, 4, 5, 9])
REFERENCE = Trace([50, 51], [[7, 8, 9, 10, 11, 12, 13]], [8, 9, 10, 11, 12, 13])

traces = st.builds(
    Trace,
    prompt=st.lists(st.integers(0, 3), max_size=10),
    references=st.lists(st.lists(st.integers(0, 3), max_size=10), max_size=2),
    output=st.lists(st.integers(0, 3), max_size=20),
)


def refdraft(
    trace: Trace, budget: int = 16, *, branching: bool = True, reliability: Reliability | None = None
) -> RefdraftMethod:
    return RefdraftMethod(
        trace, budget=budget, classes=CLASSES, odds=SurvivalOdds(), branching=branching, reliability=reliability
    )


@pytest.mark.parametrize("branching", [True, False])
@pytest.mark.parametrize(("trace", "most_steps"), [(COPY, 2), (REFERENCE, 2)])
def test_refdraft_copies_what_stands_in_a_source(trace: Trace, most_steps: int, branching: bool) -> None:
    (result,) = replay([trace], lambda trace: refdraft(trace, branching=branching))
    assert result.tokens == len(trace.output) - 1
    assert result.steps <= most_steps
    assert result.accepted >= 3


def test_a_budget_of_none_is_plain_decoding() -> None:
    (result,) = replay([COPY], lambda trace: refdraft(trace, 0))
    assert result == ReplayResult(tokens=5, steps=5)
    assert (result.tokens_per_step, result.drafted_per_step, result.acceptance) == (1, 0, 0)


@pytest.mark.parametrize("output", [[], [4]])
def test_an_output_without_a_step_counts_nothing(output: list[int]) -> None:
    (result,) = replay([Trace([1], [], output)], refdraft)
    assert result == ReplayResult()
    assert (result.tokens_per_step, result.drafted_per_step, result.seconds_per_step) == (0, 0, 0)


def test_figures_are_totals_over_all_steps_of_all_traces() -> None:
    totals = list(replay([COPY, REFERENCE], lambda trace: CopyOracle(trace, budget=2)))
    # COPY: 2 3 and a bonus, 5 and a recovered 9. REFERENCE: 9 10 and a bonus, 12 13 to the end.
    assert totals == [ReplayResult(5, 2, 3, 3), ReplayResult(10, 4, 7, 7)]
    assert totals[-1].tokens_per_step == 2.5
    assert totals[-1].drafted_per_step == 1.75
    assert totals[-1].acceptance == 1
    assert len(totals[-1].seconds) == 4
    assert totals[-1].seconds_per_step >= 0


@settings(deadline=None, max_examples=100, derandomize=True)
@given(traces, st.integers(0, 12), st.booleans())
def test_refdraft_keeps_the_budget_and_commits_no_more_than_the_output(
    trace: Trace, budget: int, branching: bool
) -> None:
    method: Method = refdraft(trace, budget, branching=branching)
    position = 1
    while position < len(trace.output):
        drafted, accepted = method.step(position)
        assert 0 <= accepted <= drafted <= budget
        assert accepted <= len(trace.output) - position
        position += accepted + 1


@settings(deadline=None, max_examples=50, derandomize=True)
@given(traces, st.booleans())
def test_every_drafted_node_is_recorded_and_the_accepted_ones_held(trace: Trace, branching: bool) -> None:
    reliability = Reliability()
    for result in replay([trace], lambda trace: refdraft(trace, branching=branching, reliability=reliability)):
        assert sum(bin_.nodes for bin_ in reliability.bins()) == result.drafted
        assert round(sum(bin_.nodes * bin_.observed for bin_ in reliability.bins())) == result.accepted
