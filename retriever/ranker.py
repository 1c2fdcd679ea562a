"""BM25 over the few texts that come with a request, where building an index would cost more than it saves."""

from collections.abc import Sequence

import numpy as np

from refdraft.retriever.words import words


def rank_texts(query: str, texts: Sequence[str], limit: int) -> list[int]:
    """Order texts by how well they match a query.

    Args:
        query: What to look for; words that no text has count nothing.
        texts: Any number of texts, empty ones included.
        limit: How many positions to return at most.

    Returns:
        Positions in `texts`, best first, equals in their own order.
    """
    from rank_bm25 import BM25Plus  # Okapi scores matches negative among one or two texts

    corpus = [words(text) for text in texts]
    if not any(corpus):  # the library divides by the mean length
        return list(range(len(texts)))[: max(limit, 0)]
    scores = BM25Plus(corpus).get_scores(words(query))
    return [int(position) for position in np.argsort(-scores, kind="stable")[: max(limit, 0)]]
