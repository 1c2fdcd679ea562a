"""Whatever is asked and however it is drafted, the engine's outputs equal the oracle's.

2,000 cases, the same every time; `pytest tests/lossless/test_properties.py --cases 20000` draws new ones, by
`--hypothesis-seed` where one is given. A failure names the seed that brings it back.
"""

import logging
import secrets
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.lossless.cases import Case, cases
from tests.lossless.trial import try_case

CASES = 2000
ENDS = ["stop", "stop_token", "stop_string", "length", "context_limit", "InvalidRequestError", "FloatingPointError"]


def search(number: int, chosen: str, phases: Sequence[Phase] = (Phase.generate, Phase.shrink)) -> Counter[str]:
    """Try `number` cases, drawn by the seed `chosen`, and count what became of their outputs.

    Raises:
        AssertionError: an output was not plain decoding's.
    """
    tally: Counter[str] = Counter()

    @seed(chosen)
    # No example database: what was once found elsewhere must not decide about a later run.
    @settings(max_examples=number, phases=phases, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(cases())
    def check(case: Case) -> None:
        try_case(case, tally)

    try:
        check()
    except Exception as error:
        error.add_note(f"Reproduce it with: pytest {__file__} --cases {number} --hypothesis-seed={chosen}")
        raise
    return tally


def test_outputs_equal_plain_decoding(pytestconfig: pytest.Config, caplog: pytest.LogCaptureFixture) -> None:
    """And what was drawn is worth it: drafts were accepted, and outputs ended in every way."""
    caplog.set_level(logging.CRITICAL, "refdraft.decoder")  # every fault of a drafter is logged
    wanted: int | None = pytestconfig.getoption("--cases")
    chosen = pytestconfig.getoption("--hypothesis-seed") or ("0" if wanted is None else str(secrets.randbits(32)))
    number = wanted or CASES
    tally = search(number, chosen)
    if number < CASES:  # too few to judge what was drawn
        return
    assert tally["accepted"] > tally["tokens"] / 5
    assert all(tally[end] > number / 50 for end in [*ENDS, "cancelled"]), tally
