"""The order of all places of an index by the tokens that stand there: any run of tokens is found by binary search.

A suffix array (Manber and Myers 1990) that sorts no deeper than drafting looks, so that long repeats cost nothing
extra: the overlap of passages alone repeats everything around their borders.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refdraft.retriever.manifest import SUFFIX_DEPTH, suffix_dtype

_SLICES = 64  # of the order, sorted one by one: bounds the memory, and each costs a scan of all tokens
_SMALLEST_SLICE = 1 << 20  # tokens
_SCAN = 1 << 22  # tokens looked at together


def write_suffixes(
    tokens: NDArray[np.unsignedinteger[Any]], starts: NDArray[np.int64], path: Path, advance: Callable[[int], object]
) -> None:
    """Sort and write suffixes.bin, whose order `retriever/manifest.py` describes.

    Memory holds one slice of the order at a time, some 60 bytes a token of it. A slice is a 64th of all tokens, but no
    fewer than a million and no fewer than the commonest token has places.

    Args:
        tokens: uint16 or uint32 [tokens], of all passages.
        starts: int64 [passages], the first token of each passage, ascending.
        path: File to write.
        advance: Told how many tokens have just been put in order.
    """
    highest = int(tokens.max(initial=0))
    with path.open("wb") as stream:
        for low, high in _slices(tokens, highest):
            places = _sorted(tokens, starts, _places(tokens, low, high), (highest + 1).bit_length())
            stream.write(places.astype(suffix_dtype(len(tokens))).tobytes())
            advance(len(places))


def _slices(tokens: NDArray[np.unsignedinteger[Any]], highest: int) -> Iterator[tuple[int, int]]:
    """Token ids as [low, high), ascending, so that a slice's ids have about equally many places."""
    counts = np.zeros(highest + 1, dtype=np.int64)
    for start in range(0, len(tokens), _SCAN):
        counts += np.bincount(tokens[start : start + _SCAN], minlength=len(counts))
    most = max(_SMALLEST_SLICE, len(tokens) // _SLICES)
    low = size = 0
    for token, count in enumerate(counts.tolist()):
        if size and size + count > most:
            yield low, token
            low, size = token, 0
        size += count
    yield low, len(counts)


def _places(tokens: NDArray[np.unsignedinteger[Any]], low: int, high: int) -> NDArray[np.int64]:
    """Where ids in [low, high) stand, ascending."""
    found = []
    for start in range(0, len(tokens), _SCAN):
        part = tokens[start : start + _SCAN]
        found.append(np.flatnonzero((part >= low) & (part < high)) + start)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _sorted(
    tokens: NDArray[np.unsignedinteger[Any]], starts: NDArray[np.int64], places: NDArray[np.int64], bits: int
) -> NDArray[np.int64]:
    """Ascending places in their final order: stable sorts by the last word of tokens, then by the one before it, ...

    A word is as many tokens as fit into 64 bits.
    """
    if not len(places):
        return places
    ends = np.append(starts[1:], len(tokens))[np.searchsorted(starts, places, side="right") - 1]
    order = np.argsort(ends - places > SUFFIX_DEPTH, kind="stable")
    for first in reversed(range(0, SUFFIX_DEPTH, 64 // bits)):
        places, ends = places[order], ends[order]
        word = np.zeros(len(places), dtype=np.uint64)
        for depth in range(first, min(first + 64 // bits, SUFFIX_DEPTH)):
            inside = np.flatnonzero(places + depth < ends)
            word <<= np.uint64(bits)
            word[inside] |= tokens[places[inside] + depth].astype(np.uint64) + np.uint64(1)  # 0 is a passage's end
        order = np.argsort(word, kind="stable")
    return places[order]
