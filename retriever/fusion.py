"""Hybrid search: reciprocal rank fusion of several retrievers."""

from collections import defaultdict
from collections.abc import Sequence

from refdraft.retriever.retriever import Ranking, Retriever

_K = 60  # Cormack, Clarke and Buettcher 2009; damps the weight of the very first ranks
_CANDIDATES = 100  # asked of each retriever; deeper ranks hardly move a sum


def fuse(rankings: Sequence[Ranking]) -> Ranking:
    """Sum 1 / (60 + rank) over rankings, best first.

    Two rankings that disagree on the first two places give both passages the same sum. The first ranking then
    decides, so it should be the more trusted one; passages it lacks follow by number.
    """
    scores: dict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, (number, _) in enumerate(ranking, start=1):
            scores[number] += 1 / (_K + rank)
    trusted = {number: rank for rank, (number, _) in enumerate(rankings[0])} if rankings else {}
    return sorted(scores.items(), key=lambda item: (-item[1], trusted.get(item[0], len(trusted)), item[0]))


class HybridRetriever:
    """Fuses what its parts find; name the most trusted first."""

    def __init__(self, parts: Sequence[Retriever]) -> None:
        self._parts = parts

    def search(self, query: str, top_k: int) -> Ranking:
        """See `Retriever`; the score is the fused one, at most parts / 61."""
        depth = max(top_k, _CANDIDATES)
        return fuse([part.search(query, depth) for part in self._parts])[:top_k]
