"""Whether a token's logits are the same to the last bit wherever it is computed, as strict numerics needs.

Kernels that treat the ends of a tensor otherwise than its middle, or choose the order of a sum by the tensor's shape,
break it; which do depends on the device, the number of threads and the sizes of the model.
"""

from collections.abc import Iterator

import torch

from refdraft.decoder.batch import Batch, Row, round_up
from refdraft.decoder.draft import Draft, Origin
from refdraft.decoder.target import Target
from refdraft.errors import PreconditionError

_SHORT, _LONG = 20, 700  # tokens in the cache; torch's attention on a CPU takes 512 cells at a time
_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65)  # tried behind the short one
_FEW_WIDTHS = (1, 2, 5, 16, 33)  # behind the long one
_IN_ALL_SLOTS = 5  # columns at most that are tried in all slots too


def shapes_agree(target: Target, widest: int) -> bool:
    """Whether a pass of any shape gives a token the same bits.

    Args:
        target: its cache must be free.
        widest: columns of a decode pass.
    """
    limit = target.context_limit
    size = min(widest, limit)
    tokens = _chain(target, size)
    lengths = {min(length, limit - size): widths for length, widths in ((_LONG, _FEW_WIDTHS), (_SHORT, _WIDTHS))}
    target.scramble(_LONG)
    for start, widths in lengths.items():
        whole = _run(target, 1, start, tokens, widest, target.cells)[0]
        for rows, width, skip in _shapes(target.slots, size, widths):
            part = slice(skip, skip + width)
            found = _run(target, rows, start + skip, tokens[part], width, round_up(start + skip + width))
            if _gap(found, whole[part].expand_as(found)) > 0.0:
                return False
    return True


def _shapes(slots: int, size: int, widths: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Rows, columns, and how many of the chain's tokens come before."""
    for width in widths:
        if width <= size:
            yield 1, width, size - width
        if width <= min(size, _IN_ALL_SLOTS):
            yield slots, width, 0


def check_bits(target: Target, width: int) -> None:
    """Run one chain in passes of one shape, from its first token on and from later ones, as drafting may.

    Args:
        target: what is checked, in all its slots. Its cache must be free.
        width: columns of a strict pass.

    Raises:
        PreconditionError: some logits differ.
    """
    size = min(width, target.context_limit)
    start = (target.context_limit - size) // 2
    tokens = _chain(target, size)
    target.scramble(_LONG)
    whole = _run(target, target.slots, start, tokens, width, target.cells)
    worst = _gap(whole, whole[:1].expand_as(whole))
    for first in sorted({1, size // 2, size - 1} & set(range(1, size))):
        later = _run(target, target.slots, start + first, tokens[first:], width, target.cells)
        worst = max(worst, _gap(later, whole[:, first:size]))
    if worst > 0.0:
        raise PreconditionError(
            f"strict numerics does not hold on this machine: the same tokens had logits that differ by {worst:.1g}"
            f" in another place of the batch of {target.slots} x {width}; try max_draft_tokens 3 or 15, one CPU thread"
            f" instead of {torch.get_num_threads()}, or numerics fast"
        )


def _chain(target: Target, size: int) -> list[int]:
    return [7919 * place % target.vocabulary_size for place in range(size)]


def _run(target: Target, rows: int, start: int, tokens: list[int], width: int, cells: int) -> torch.Tensor:
    """Logits of a chain behind `start` tokens in the last `rows` slots: float32 [rows, len(tokens), vocabulary]."""
    draft = Draft.chain(tokens[1:], [Origin("check", 0, 0)] * (len(tokens) - 1), [1.0] * (len(tokens) - 1))
    row = Row(start, tokens[0], draft)
    first, last_position = target.slots - rows, target.context_limit - 1
    batch = Batch.decode(first, [row] * rows, width=width, cells=cells, last_position=last_position)
    return target.run(batch)[:, : len(tokens)]


def _gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.nan_to_num() - theirs.nan_to_num()).abs().max())
