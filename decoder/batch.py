"""The input arrays of one pass: ragged rows laid side by side, each with its own mask and positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.draft import EMPTY, Draft

BLOCK = 512  # cells; see `round_up`
_Count = TypeVar("_Count", int, NDArray[np.int64])


def round_up(count: _Count, block: int = BLOCK) -> _Count:
    """The least multiple of a block.

    torch's attention on a CPU takes the cells in blocks of 512. Where all blocks are whole, a query's bits do not
    depend on how many cells it does not see.
    """
    return -(-count // block) * block


@dataclass(frozen=True, slots=True)
class Row:
    """What one slot runs in a pass: its newest token and the draft that hangs from it.

    `length` tokens of the slot's context are in the KV cache already. A row without a token is idle: it runs
    along because the slots of a pass are contiguous, and what it writes lies behind its context.
    """

    length: int
    token: int | None = None
    draft: Draft = EMPTY


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of one pass over slots [first_slot, first_slot + rows).

    Attributes:
        first_slot: slot of row 0.
        tokens: int64 [rows, width], 0 where padded.
        positions: int64 [rows, width], each token's position in its sequence.
        starts: int64 [rows], the cell of the KV cache that a row's first token is written to.
        mask: bool [rows, width, cells], True where a token attends to a cell.
        certain: columns [0, certain) are the context's for sure, and a NaN in them is its own: the prompt's tokens
            in a prefill pass, none in a decode pass. From the others (drafts, padding) a NaN must not spread.
    """

    first_slot: int
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    starts: NDArray[np.int64]
    mask: NDArray[np.bool_]
    certain: int

    @classmethod
    def decode(cls, first_slot: int, rows: Sequence[Row], *, width: int, cells: int, last_position: int) -> "Batch":
        """A decode pass: every row is padded to `width` tokens and attends to `cells` cells at most.

        Positions of padding never pass `last_position`, for targets that look positions up in a table.
        """
        tokens = np.zeros((len(rows), width), np.int64)
        starts = np.array([row.length for row in rows], np.int64)
        positions = np.minimum(starts[:, None] + np.arange(width), last_position)
        mask = np.zeros((len(rows), width, cells), np.bool_)
        for index, row in enumerate(rows):
            size = len(row.draft) + 1
            window = mask[index, :, row.length : row.length + width]
            mask[index, :, : row.length] = True
            np.fill_diagonal(window, val=True)  # a padding token sees itself, so that its softmax is defined
            window[:size, :size] = row.draft.visibility()
            tokens[index, 0] = row.token or 0
            tokens[index, 1:size] = row.draft.tokens
            positions[index, 1:size] = row.length + np.array(row.draft.depths(), np.int64)
        return cls(first_slot, tokens, positions, starts, mask, certain=0)

    @classmethod
    def prefill(
        cls, slot: int, start: int, tokens: Sequence[int], *, width: int, cells: int, last_position: int
    ) -> "Batch":
        """A prefill pass: prompt tokens [start, start + len(tokens)) of one slot, padded to `width`."""
        padded = np.zeros((1, width), np.int64)
        padded[0, : len(tokens)] = tokens
        positions = np.minimum(start + np.arange(width), last_position)[None]
        mask = np.tri(width, cells, start, dtype=np.bool_)[None]
        return cls(slot, padded, positions, np.array([start], np.int64), mask, certain=len(tokens))

    def cell_positions(self) -> NDArray[np.int64]:
        """The position of the token in each cell, int64 [rows, cells]: in a tree its depth, not its place, says it."""
        rows, width, cells = self.mask.shape
        positions = np.tile(np.arange(cells), (rows, 1))
        np.put_along_axis(positions, self.starts[:, None] + np.arange(width), self.positions, axis=1)
        return positions

    def mask_within(self, window: int) -> NDArray[np.bool_]:
        """`mask` without the cells whose token lies `window` or more positions back: bool [rows, width, cells]."""
        near: NDArray[np.bool_] = self.positions[:, :, None] - self.cell_positions()[:, None] < window
        return self.mask & near
