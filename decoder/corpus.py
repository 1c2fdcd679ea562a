"""The corpus: all passages of an index as one text to copy from, whether they were retrieved or not.

The places of the text are sorted by the tokens that stand there (a suffix array, Manber and Myers 1990), as REST
(He et al. 2023) keeps its datastore. All occurrences of a run of tokens are then neighbours in that order, and two
binary searches find them, whatever the size of the text. Nothing is read into memory but what the searches touch.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.compiled import compiled

LONGEST = 16  # tokens of a match that are told apart; the order of the places is no deeper

Unsigned = NDArray[np.unsignedinteger[Any]]
Int = NDArray[np.int32]
Long = NDArray[np.int64]


class Corpus:
    """All passages of an index as one text to copy from, memory-mapped.

    A *position* is the index of a token that may be copied next. Safe to use from several threads.
    """

    def __init__(self, tokens: Unsigned, suffixes: Unsigned, starts: Long) -> None:
        """Take the arrays as they are; nothing is copied.

        The large two are not looked through. Wrong values in them make for missed matches and wrong drafts, and are
        never used as an address unchecked.

        Args:
            tokens: Token ids of all passages, uint16 or uint32 [tokens].
            suffixes: Indices of `tokens`, uint32 or uint64 [tokens], sorted by the `LONGEST` tokens from there on, then
                by whether the passage goes on behind them; a passage's end comes before every token.
            starts: The first token of each passage, int64 [passages], ascending from 0.

        Raises:
            ValueError: The arrays do not belong together.
        """
        bounds = np.concatenate([starts, [len(tokens)]])
        if len(suffixes) != len(tokens) or bounds[0] != 0 or (bounds[1:] < bounds[:-1]).any():
            raise ValueError("the tokens, suffixes and starts of a corpus do not belong together")
        self._tokens, self._suffixes, self._starts = tokens, suffixes, starts

    def find(self, context: Int, most: int) -> tuple[Long, Int]:
        """Where to copy from: what follows the longest suffixes of a context.

        Where a length has more occurrences than are still wanted, those taken are spread evenly over all of them in
        the order of what follows.

        Args:
            context: Token ids, int32 [any]; only the last `LONGEST` count.
            most: Positions wanted, at least 1.

        Returns:
            Positions, int64 [found], and how many tokens before each equal the end of the context, int32 [found],
            1 to `LONGEST`; longest first, at most `most`, none twice.
        """
        positions, lengths, scratch = np.empty(most, np.int64), np.empty(most, np.int32), np.empty(most, np.int64)
        end = np.ascontiguousarray(context[-LONGEST:], np.int32)
        found = _find(self._tokens, self._suffixes, self._starts, end, positions, lengths, scratch)
        return positions[:found], lengths[:found]

    def passage(self, position: int) -> tuple[int, int]:
        """The passage that a token belongs to, by number, and the token's offset within it.

        Raises:
            IndexError: There is no such token.
        """
        if not 0 <= position < len(self._tokens):
            raise IndexError(f"there is no token {position}, only {len(self._tokens)} tokens")
        number = int(np.searchsorted(self._starts, position, side="right")) - 1
        return number, position - int(self._starts[number])

    def copy(self, position: int, most: int) -> Int:
        """Token ids from a position on, int32 [at most `most`], no further than its passage goes.

        Raises:
            IndexError: There is no such token.
        """
        number, _ = self.passage(position)
        end = self._starts[number + 1] if number + 1 < len(self._starts) else len(self._tokens)
        return self._tokens[position : min(position + most, int(end))].astype(np.int32)


@compiled
def _compare(tokens: Unsigned, starts: Long, place: np.int64, run: Int) -> int:
    """How the text from a place on compares to all that begins with a run and goes on: -1 before, 0 among, 1 after."""
    if not 0 <= place < len(tokens):
        return -1
    token = np.int64(tokens[place])
    if token != run[0]:
        return -1 if token < run[0] else 1
    following = np.searchsorted(starts, place, side="right")
    end = starts[following] if following < len(starts) else len(tokens)
    for depth in range(1, len(run)):
        if place + depth >= end:
            return -1
        token = np.int64(tokens[place + depth])
        if token != run[depth]:
            return -1 if token < run[depth] else 1
    return 0 if place + len(run) < end else -1


@compiled
def _bound(tokens: Unsigned, suffixes: Unsigned, starts: Long, run: Int, low: int, high: int, least: int) -> int:
    """The first index in [low, high) of `suffixes` that compares as `least` or more, `high` if none does."""
    while low < high:
        middle = (low + high) // 2
        if _compare(tokens, starts, np.int64(suffixes[middle]), run) < least:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _occurrences(tokens: Unsigned, suffixes: Unsigned, starts: Long, run: Int) -> tuple[int, int]:
    """The occurrences of a run that go on behind it, as [first, past) in `suffixes`."""
    first = _bound(tokens, suffixes, starts, run, 0, len(suffixes), 0)
    step = 1  # mostly they are few: look for their end close by
    while first + step < len(suffixes) and _compare(tokens, starts, np.int64(suffixes[first + step]), run) < 1:
        step *= 2
    return first, _bound(tokens, suffixes, starts, run, first + step // 2, min(first + step, len(suffixes)), 1)


@compiled
def _match(tokens: Unsigned, starts: Long, position: np.int64, context: Int) -> int:
    """How many tokens before a position equal the end of the context, within the position's own passage."""
    if not 0 <= position < len(tokens):
        return 0
    start = starts[np.searchsorted(starts, position, side="right") - 1]
    most = min(len(context), position - start)
    length = 0
    while length < most and np.int64(tokens[position - 1 - length]) == context[len(context) - 1 - length]:
        length += 1
    return length


@compiled
def _take_all(
    tokens: Unsigned, starts: Long, places: Unsigned, least: int, context: Int, positions: Long, lengths: Int
) -> int:
    """Fill in what follows a run of `least` tokens at each place, longest match first; how many there are."""
    found = 0
    for index in range(len(places)):
        position = np.int64(places[index]) + least
        length = _match(tokens, starts, position, context)
        if length < least:
            continue
        rank = found
        while rank > 0 and lengths[rank - 1] < length:
            positions[rank], lengths[rank] = positions[rank - 1], lengths[rank - 1]
            rank -= 1
        positions[rank], lengths[rank] = position, length
        found += 1
    return found


@compiled
def _take_sample(
    tokens: Unsigned, starts: Long, places: Unsigned, length: int, context: Int, positions: Long, scratch: Long
) -> int:
    """Fill in what follows a run of tokens at evenly spread places; how many there are.

    Those with a longer match were taken before and are left out. `scratch` has room for these and `positions` together,
    and there are at least as many places.
    """
    usable = 0
    for index in range(len(scratch)):
        position = np.int64(places[len(places) * index // len(scratch)]) + length
        if _match(tokens, starts, position, context) == length:
            scratch[usable] = position
            usable += 1
    taken = min(len(positions), usable)
    for index in range(taken):
        positions[index] = scratch[usable * index // taken]
    return taken


@compiled
def _find(
    tokens: Unsigned, suffixes: Unsigned, starts: Long, context: Int, positions: Long, lengths: Int, scratch: Long
) -> int:
    """Fill in what `Corpus.find` returns; how many positions.

    What follows a suffix of the context also follows every shorter one. So there is a length up to which occurrences
    are plenty, `most` or more, and beyond which they are few: all of the few are taken, and a sample of the plenty.
    """
    most, size = len(positions), len(context)
    plenty, few = 0, size + 1
    many, rest = suffixes[:0], suffixes[:0]  # where runs of these lengths occur
    while few - plenty > 1:
        length = (plenty + few) // 2
        first, past = _occurrences(tokens, suffixes, starts, context[size - length :])
        if past - first < most:
            few, rest = length, suffixes[first:past]
        else:
            plenty, many = length, suffixes[first:past]
    found = _take_all(tokens, starts, rest, few, context, positions, lengths)
    if plenty == 0:
        return found
    sampled = _take_sample(tokens, starts, many, plenty, context, positions[found:], scratch)
    lengths[found : found + sampled] = plenty
    return found + sampled
