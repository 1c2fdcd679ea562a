"""BM25 over the corpus: bm25s arrays, memory-mapped."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from refdraft.errors import IndexFormatError
from refdraft.retriever.retriever import Ranking
from refdraft.retriever.words import words

if TYPE_CHECKING:
    import bm25s

# bm25s' own file names. The first group is read whole when an index is opened, the second is only mapped.
BM25_READ_FILES = ("params.index.json", "vocab.index.json", "indptr.csc.index.npy")
BM25_MAPPED_FILES = ("data.csc.index.npy", "indices.csc.index.npy")


def build_bm25(texts: Iterable[str], directory: Path, *, progress: bool = False) -> None:
    """Score every word of every text and save the arrays in `directory`; nothing is pickled."""
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG when imported
    vocabulary = {"": 0}  # never a word; keeps the arrays valid when no text has a word at all
    corpus = [array("I", (vocabulary.setdefault(word, len(vocabulary)) for word in words(text))) for text in texts]
    model = bm25s.BM25(method="lucene", backend="numpy")
    with np.errstate(invalid="ignore"):  # the mean length of texts without words is 0
        model.index((corpus, vocabulary), show_progress=progress)
    model.save(directory, show_progress=False)


class BM25Retriever:
    """Word search with Lucene's variant of BM25 (k1 1.5, b 0.75)."""

    def __init__(self, model: bm25s.BM25) -> None:
        self._model = model

    @classmethod
    def open(cls, directory: Path) -> BM25Retriever:
        """Map what `build_bm25` wrote; the caller has checked the files that are read whole.

        Raises:
            IndexFormatError: The header of a mapped file was altered.
        """
        import bm25s

        try:
            return cls(bm25s.BM25.load(directory, mmap=True, show_progress=False))
        except Exception as error:  # numpy's header parser lets through whatever it stumbles over
            raise IndexFormatError(f"{directory} holds damaged arrays: rebuild the index") from error

    def search(self, query: str, top_k: int) -> Ranking:
        """See `Retriever`. A word counts once however often the query repeats it; no word in common, no hit.

        Raises:
            IndexFormatError: The mapped arrays point outside the index.
        """
        ids = self._model.get_tokens_ids(list(dict.fromkeys(words(query))))
        if not ids:
            return []
        try:
            scores = self._model.get_scores_from_ids(ids)
        except (IndexError, ValueError) as error:
            raise IndexFormatError("the BM25 arrays are damaged: rebuild the index") from error
        return _best(scores, top_k)


def _best(scores: np.ndarray, top_k: int) -> Ranking:
    """The `top_k` highest positive scores; float32 [passages]."""
    numbers = np.flatnonzero(scores > 0)
    found = scores[numbers]
    if len(found) > top_k:  # everything above the last place, and all its equals, before the exact sort
        keep = found >= np.partition(found, -top_k)[-top_k]
        numbers, found = numbers[keep], found[keep]
    order = np.lexsort((numbers, -found))[:top_k]
    return [(int(numbers[place]), float(found[place])) for place in order]
