"""Replays small enough to count by hand."""

from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from refdraft.decoder.odds import AcceptanceRates
from refdraft.decoder.replay import (
    ORACLE_SPAN,
    CopyOracleMethod,
    Method,
    PromptLookupMethod,
    RefdraftMethod,
    ReplayResult,
    Trace,
    replay,
)


def make(name: str, trace: Trace, budget: int) -> Method:
    if name == "refdraft":
        return RefdraftMethod(trace, budget=budget, rates=AcceptanceRates())
    kind = PromptLookupMethod if name == "prompt_lookup" else CopyOracleMethod
    return kind(trace, budget=budget)


def run(name: str, trace: Trace, budget: int = 16) -> ReplayResult:
    return list(replay([trace], lambda trace: make(name, trace, budget)))[-1]


COPY = Trace([1, 2, 3, 4, 5, 6], [], [1, 2, 3, 4, 5, 9])
REFERENCE = Trace([50, 51], [[7, 8, 9, 10, 11, 12, 13]], [8, 9, 10, 11, 12, 13])


@pytest.mark.parametrize(
    ("name", "trace", "budget", "steps", "drafted"),
    [
        # Behind the first token, "1": 2 3 4 5 hold, the 6 and the output's own 1 behind it do not, 9 is recovered.
        ("refdraft", COPY, 16, 1, 6),
        ("prompt_lookup", COPY, 16, 1, 6),
        ("copy_oracle", COPY, 16, 1, 4),
        # Two tokens at a time: 2 3 and the bonus 4, then 5 (and a 6 that fails) and the recovered 9.
        ("refdraft", COPY, 2, 2, 4),
        ("prompt_lookup", COPY, 2, 2, 4),
        ("copy_oracle", COPY, 2, 2, 3),
        # A reference that the output leaves at its end. Prompt lookup runs on into the prompt behind it.
        ("refdraft", REFERENCE, 16, 1, 5),
        ("prompt_lookup", REFERENCE, 16, 1, 8),
        ("copy_oracle", REFERENCE, 16, 1, 5),
        # No drafting is plain decoding: one token a step, the first one being the prefill's.
        ("refdraft", COPY, 0, 5, 0),
        ("prompt_lookup", COPY, 0, 5, 0),
        ("copy_oracle", COPY, 0, 5, 0),
        # Nothing to copy.
        ("refdraft", Trace([1], [[2]], [3, 4, 5]), 16, 2, 0),
        ("prompt_lookup", Trace([1], [[2]], [3, 4, 5]), 16, 2, 0),
        ("copy_oracle", Trace([1], [[2]], [3, 4, 5]), 16, 2, 0),
    ],
)
def test_steps_and_drafts_are_as_counted_by_hand(
    name: str, trace: Trace, budget: int, steps: int, drafted: int
) -> None:
    result = run(name, trace, budget)
    assert result == ReplayResult(tokens=len(trace.output) - 1, steps=steps, drafted=drafted)
    assert result.tokens_per_step == (len(trace.output) - 1) / steps
    assert result.drafted_per_step == drafted / steps


@pytest.mark.parametrize("name", ["refdraft", "prompt_lookup", "copy_oracle"])
@pytest.mark.parametrize("output", [[], [4]])
def test_an_output_without_a_step_counts_nothing(name: str, output: list[int]) -> None:
    result = run(name, Trace([], [], output))
    assert result == ReplayResult()
    assert (result.tokens_per_step, result.drafted_per_step) == (0.0, 0.0)


def test_totals_run_on_over_traces() -> None:
    totals = list(replay([COPY, REFERENCE], lambda trace: make("copy_oracle", trace, 16)))
    assert totals == [ReplayResult(5, 1, 4), ReplayResult(10, 2, 9)]


def lookup(context: Sequence[int], limit: int) -> list[int]:
    for size in (3, 2, 1):
        for at in range(len(context) - size):
            if list(context[at : at + size]) == list(context[-size:]):
                return list(context[at + size : at + size + limit])
    return []


traces = st.builds(
    Trace,
    prompt=st.lists(st.integers(0, 3), max_size=10),
    references=st.lists(st.lists(st.integers(0, 3), max_size=10), max_size=2),
    output=st.lists(st.integers(0, 3), max_size=20),
)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(traces, st.integers(0, 12))
def test_prompt_lookup_keeps_its_rule(trace: Trace, budget: int) -> None:
    method = PromptLookupMethod(trace, budget=budget)
    before = [*chain(*trace.references), *trace.prompt]
    position = 1
    while position < len(trace.output):
        draft = lookup([*before, *trace.output[:position]], min(10, budget))
        accepted = 0
        while accepted < len(draft) and list(trace.output[position:])[accepted : accepted + 1] == [draft[accepted]]:
            accepted += 1
        assert method.step(position) == (len(draft), accepted)
        position += accepted + 1


@settings(deadline=None, max_examples=300, derandomize=True)
@given(traces, st.integers(0, ORACLE_SPAN))
@example(Trace([6, 7, 8, 3, 1, 9, 0, 5], [], [6, 7, 8, 1, 9, 0, 5, 6, 7, 8, 2]), 16)  # over the prompt's end
def test_no_copier_of_single_spans_needs_fewer_steps_than_the_oracle(trace: Trace, budget: int) -> None:
    """Taking the longest copy at once is best: from later on in the output, what is left of it can be copied too.

    It bounds what copies one run of a source a step, up to as many tokens; prompt lookup is no such method where
    it runs over the border between two references.
    """
    assert run("copy_oracle", trace, budget).steps <= run("refdraft", trace, budget).steps
