"""Predicted survivals sorted into bins."""

import pytest

from refdraft.decoder.draft import Draft, Origin
from refdraft.decoder.reliability import Bin, Reliability


def draft(parents: list[int], survivals: list[float]) -> Draft:
    nodes = len(parents)
    return Draft(tuple(range(nodes)), tuple(parents), (Origin("prompt", 0, 0),) * nodes, tuple(survivals))


def test_nothing_recorded_gives_no_bins() -> None:
    reliability = Reliability()
    assert reliability.bins() == []
    reliability.record(Draft(), [])
    assert reliability.bins() == []


def test_a_bin_tells_what_was_promised_and_what_held() -> None:
    reliability = Reliability()
    reliability.record(draft([-1, -1, 0], [0.5, 0.25, 0.5]), [0, 2])
    reliability.record(draft([-1], [0.4375]), [])
    assert reliability.bins() == [
        Bin("1", 0.2, 0.4, 1, 0.25, 0.0),
        Bin("1", 0.4, 0.6, 2, 0.46875, 0.5),
        Bin("2-4", 0.4, 0.6, 1, 0.5, 1.0),
    ]


@pytest.mark.parametrize(
    ("survival", "low"), [(0.0, 0.0), (0.02, 0.02), (0.099, 0.05), (0.4, 0.4), (0.8999, 0.8), (0.9, 0.9), (1.0, 0.9)]
)
def test_a_bin_begins_with_its_lower_edge_and_the_last_holds_certainty(survival: float, low: float) -> None:
    reliability = Reliability()
    reliability.record(draft([-1], [survival]), [])
    assert [bin_.low for bin_ in reliability.bins()] == [low]


def test_depths_are_told_apart() -> None:
    reliability = Reliability()
    reliability.record(draft(list(range(-1, 6)), [0.5] * 7), [0])
    assert [(bin_.depth, bin_.nodes) for bin_ in reliability.bins()] == [("1", 1), ("2-4", 3), ("5+", 3)]
