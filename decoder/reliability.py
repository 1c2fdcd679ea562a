"""Reliability of predicted survivals: what was promised against what held, by depth."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.draft import Draft

EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)  # of the bins of predicted survival
DEPTHS = ("1", "2-4", "5+")
_DEPTH_STARTS = (1, 2, 5)


@dataclass(frozen=True, slots=True)
class Bin:
    """Draft nodes of a range of depths and of predicted survivals.

    Attributes:
        depth: one of DEPTHS.
        low, high: the range of predicted survivals, `high` excluded unless it is 1.
        nodes: how many there were.
        predicted: mean predicted survival.
        observed: share that held, and all before them.
    """

    depth: str
    low: float
    high: float
    nodes: int
    predicted: float
    observed: float


class Reliability:
    """Collects drafts and what held of them."""

    def __init__(self) -> None:
        self._survivals: list[NDArray[np.float64]] = []
        self._depths: list[NDArray[np.int16]] = []
        self._held: list[NDArray[np.bool_]] = []

    def record(self, draft: Draft, held: Iterable[int]) -> None:
        """Add a draft and the nodes that held. What reaches beyond the end of the output did not."""
        holds = np.zeros(len(draft), np.bool_)
        holds[list(held)] = True
        self._survivals.append(np.array(draft.survivals, np.float64))
        self._depths.append(np.array(draft.depths(), np.int16))
        self._held.append(holds)

    def bins(self) -> list[Bin]:
        """The bins that have nodes, by depth and then by survival."""
        if not self._held:
            return []
        survivals, held = np.concatenate(self._survivals), np.concatenate(self._held)
        depths = np.digitize(np.concatenate(self._depths), _DEPTH_STARTS) - 1
        places = np.digitize(survivals, EDGES[1:-1])
        bins = []
        for depth, name in enumerate(DEPTHS):
            for place in range(len(EDGES) - 1):
                here = (depths == depth) & (places == place)
                nodes = int(here.sum())
                if nodes:
                    predicted, observed = float(survivals[here].mean()), float(held[here].mean())
                    bins.append(Bin(name, EDGES[place], EDGES[place + 1], nodes, predicted, observed))
        return bins
