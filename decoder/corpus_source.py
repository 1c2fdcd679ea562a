"""The corpus as a source: where a passage goes on as the context does, it joins what the request drafts from.

So passages that were never retrieved are found by their own words, and cursors, odds and attributions treat them as
they treat references. (REST, He et al. 2023, drafts from counts over such matches.)
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from refdraft.decoder.corpus import LONGEST, Corpus
from refdraft.decoder.pool import Int

_LEAST = 2  # tokens of a match that lets a passage in at first,
_PACE = 64  # and one more each time that so many were let in: a long output must not use up the room early
_PLACES = 16  # matches looked at after each step
_NEW = 4  # passages let in after each step
_BEHIND = 80  # tokens of a passage that come in behind the match


class Excerpt(NamedTuple):
    """A part of a passage.

    Attributes:
        passage: its number.
        offset: of the first token within the passage.
        ids: int32 [at most LONGEST + _BEHIND].
    """

    passage: int
    offset: int
    ids: Int


class CorpusSource:
    """Follows one context through a corpus.

    Args:
        corpus: what to search.
        prompt: token ids that the output follows.
    """

    def __init__(self, corpus: Corpus, prompt: Sequence[int]) -> None:
        self._corpus = corpus
        self._context = list(prompt[-LONGEST:])  # its last tokens
        self._taken: dict[int, list[range]] = {}  # token offsets by passage
        self._let_in = 0

    def observe(self, tokens: Sequence[int]) -> Iterator[Excerpt]:
        """Take the tokens that were committed, and find what goes on as the context does now, best match first."""
        self._context = [*self._context, *tokens][-LONGEST:]
        positions, lengths = self._corpus.find(np.array(self._context, np.int32), _PLACES)
        least, most = _LEAST + self._let_in // _PACE, self._let_in + _NEW
        for position, length in zip(positions.tolist(), lengths.tolist(), strict=True):
            if length < least or self._let_in == most:
                return
            passage, offset = self._corpus.passage(position)
            taken = self._taken.setdefault(passage, [])
            if not any(offset in part for part in taken):
                back = min(offset, LONGEST)
                ids = self._corpus.copy(position - back, back + _BEHIND)
                taken.append(range(offset - back, offset - back + len(ids)))
                self._let_in += 1
                yield Excerpt(passage, offset - back, ids)
