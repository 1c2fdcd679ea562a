"""The one interface of BM25, dense and hybrid search."""

from typing import Protocol

Ranking = list[tuple[int, float]]  # (passage number, score), best first


class Retriever(Protocol):
    """Anything that finds passages for a query."""

    def search(self, query: str, top_k: int) -> Ranking:
        """At most `top_k` passages that match, best first; equal scores by the lower passage number."""
        ...
