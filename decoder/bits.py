"""Whether strict numerics holds: the same tokens must have the same logits, to the last bit, in any column and row."""

import torch

from refdraft.decoder.batch import Batch, Row
from refdraft.decoder.draft import Draft, Origin
from refdraft.decoder.target import Target
from refdraft.errors import PreconditionError


def check_bits(target: Target, width: int) -> None:
    """Run one chain in passes of one shape, from its first token on and from later ones, as drafting may.

    Kernels that treat the ends of a tensor otherwise than its middle break strict numerics; which do depends on the
    device, the number of threads and the sizes of the model. The target's cache must be free.

    Args:
        target: what is checked, in all its slots.
        width: columns of a strict pass.

    Raises:
        PreconditionError: some logits differ.
    """
    size = min(width, target.context_limit)
    start = (target.context_limit - size) // 2
    tokens = [7919 * place % target.vocabulary_size for place in range(size)]
    whole = _pass(target, start, tokens, width)
    worst = _gap(whole, whole[:1].expand_as(whole))
    for first in sorted({1, size // 2, size - 1} & set(range(1, size))):
        later = _pass(target, start + first, tokens[first:], width)
        worst = max(worst, _gap(later[:, : size - first], whole[:, first:size]))
    if worst > 0.0:
        raise PreconditionError(
            f"strict numerics does not hold on this machine: the same tokens had logits that differ by {worst:.1g}"
            f" in another place of the batch of {target.slots} x {width}; try max_draft_tokens 3 or 15, one CPU thread"
            f" instead of {torch.get_num_threads()}, or numerics fast"
        )


def _pass(target: Target, start: int, tokens: list[int], width: int) -> torch.Tensor:
    """Logits of a chain in every slot: float32 [slots, width, vocabulary]."""
    draft = Draft.chain(tokens[1:], [Origin("check", 0, 0)] * (len(tokens) - 1), [1.0] * (len(tokens) - 1))
    rows = [Row(start, tokens[0], draft)] * target.slots
    batch = Batch.decode(0, rows, width=width, cells=target.cells, last_position=target.context_limit - 1)
    return target.run(batch)


def _gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.nan_to_num() - theirs.nan_to_num()).abs().max())
