"""Documents to passages: as many whole sentences as fit, with the last few repeated in the next passage."""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from refdraft.errors import InvalidRequestError
from refdraft.retriever.tokenizer import Tokenizer

# Where a sentence or paragraph ends: marks before white space with their closing quotes, CJK marks anywhere, or
# the last sign before an empty line. Possessive and fixed-width parts keep it linear on any text.
_END = re.compile(
    r"(?<![.!?\u2026])[.!?\u2026]++[\"'\u201d\u2019)\]]*+(?=\s)"
    r"|[\u3002\uff01\uff1f]++[\u201d\u2019\u300d\u300f\uff09]*+"
    r"|\S(?=[^\S\n]*\n[^\S\n]*\n)"
)
_LONGEST_UNIT = 1 << 16  # characters tokenised at once; longer stretches without a sentence end are cut here
_BATCH = 512  # units tokenised together


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOptions:
    """How long passages are, in tokens of the target."""

    passage_tokens: int = 256
    overlap_tokens: int = 32

    def __post_init__(self) -> None:
        if self.passage_tokens < 16:
            raise InvalidRequestError(f"must be at least 16, not {self.passage_tokens}", field="passage-tokens")
        if not 0 <= self.overlap_tokens <= self.passage_tokens // 2:
            raise InvalidRequestError(
                f"must be from 0 to half of passage-tokens, not {self.overlap_tokens}", field="overlap-tokens"
            )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Characters [start, end) of a document and the token ids of just that text."""

    start: int
    end: int
    token_ids: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Unit:
    """A sentence, or a piece of a long one: characters [start, end), white space before it included."""

    start: int
    end: int
    tokens: int


class Chunker:
    """Cuts documents; every character but white space ends up in some passage, none in a passage too long."""

    def __init__(self, tokenizer: Tokenizer, options: ChunkOptions) -> None:
        self._tokenizer = tokenizer
        self._options = options

    def chunks(self, text: str) -> Iterator[Chunk]:
        """Passages of a text in order; none if it is white space."""
        ahead: deque[_Unit] = deque()  # put back after a passage turned out too long
        units = self._units(text)
        window: list[_Unit] = []
        while fresh := self._take(ahead, units, sum(unit.tokens for unit in window)):
            window += fresh
            chunk = self._fit(text, window, len(window) - len(fresh), ahead)
            yield chunk
            window = self._overlap(window)

    def _take(self, ahead: deque[_Unit], units: Iterator[_Unit], used: int) -> list[_Unit]:
        """Units that fill a passage of which `used` tokens are taken; at least one while there are any."""
        fresh: list[_Unit] = []
        while unit := ahead.popleft() if ahead else next(units, None):
            if fresh and used + unit.tokens > self._options.passage_tokens:
                ahead.appendleft(unit)
                break
            fresh.append(unit)
            used += unit.tokens
        return fresh

    def _fit(self, text: str, window: list[_Unit], repeated: int, ahead: deque[_Unit]) -> Chunk:
        """The chunk of a window, after shrinking the window until its text really fits.

        Counts of single units only estimate the whole: a sentence is tokenised differently at the start of a
        text. First repeated units go, then new ones, at last the only one left is halved.
        """
        while True:
            chunk = self._chunk(text, window[0].start, window[-1].end)
            if len(chunk.token_ids) <= self._options.passage_tokens:
                return chunk
            if repeated:
                del window[0]
                repeated -= 1
            elif len(window) > 1:
                ahead.appendleft(window.pop())
            else:
                pieces = self._cut(text, window[0], max(1, window[0].tokens // 2))
                if len(pieces) == 1:  # cannot be cut any further
                    return chunk
                window[:] = pieces[:1]
                ahead.extendleft(reversed(pieces[1:]))

    def _chunk(self, text: str, start: int, end: int) -> Chunk:
        piece = text[start:end]
        start += len(piece) - len(piece.lstrip())
        piece = piece.strip()
        return Chunk(start, start + len(piece), self._tokenizer.encode(piece))

    def _overlap(self, window: list[_Unit]) -> list[_Unit]:
        """The last units of a passage that the next one repeats; never all, so that passages move on."""
        used = 0
        for place in range(len(window) - 1, 0, -1):
            used += window[place].tokens
            if used > self._options.overlap_tokens:
                return window[place + 1 :]
        return window[1:]

    def _units(self, text: str) -> Iterator[_Unit]:
        spans = _sentences(text)
        while batch := list(islice(spans, _BATCH)):
            counts = map(len, self._tokenizer.encode_batch([text[start:end] for start, end in batch]))
            for (start, end), tokens in zip(batch, counts, strict=True):
                unit = _Unit(start, end, tokens)
                long = tokens > self._options.passage_tokens
                # Pieces much shorter than a passage pack well and leave something to repeat.
                yield from self._cut(text, unit, self._options.passage_tokens // 8) if long else [unit]

    def _cut(self, text: str, unit: _Unit, most: int) -> list[_Unit]:
        """Pieces of a unit of about `most` tokens, between tokens and between characters."""
        _, offsets = self._tokenizer.encode_with_offsets(text[unit.start : unit.end])
        bounds = np.unique([0, *offsets[most::most, 0], unit.end - unit.start]) + unit.start
        pieces: list[_Unit] = []
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            if not text[start:end].isspace():
                pieces.append(_Unit(pieces[-1].end if pieces else unit.start, end, most))
        return pieces


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    """Sentences as [start, end), each with the white space before it, none of white space alone."""
    start, last = 0, len(text.rstrip())
    for match in _END.finditer(text, 0, last):
        yield from _stretch(text, start, match.end())
        start = match.end()
    if start < last:
        yield from _stretch(text, start, last)


def _stretch(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > _LONGEST_UNIT:
        space = text.rfind(" ", start + _LONGEST_UNIT // 2, start + _LONGEST_UNIT)
        middle = space if space > 0 else start + _LONGEST_UNIT
        if not text[start:middle].isspace():
            yield start, middle
        start = middle
    yield start, end
