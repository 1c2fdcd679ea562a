"""LLMA: copy from the references behind an n-gram of the output."""

from collections.abc import Sequence

from refdraft.decoder.peers.peer import Peer
from refdraft.decoder.peers.text import Text
from refdraft.decoder.peers.tree import Tree
from refdraft.decoder.replay import Trace

_BORDER = -1  # stands behind each document; no token id is negative
_LONGEST = 5  # tokens that are looked for at first; the program's `max_n`
_BLOCK = 20  # tokens that a step feeds to the target, the last committed one among them; the program's `k`


class Llma(Peer):
    """LLMA (Yang et al. 2023, "Inference with Reference: Lossless Acceleration of Large Language Models").

    The last 5 tokens of the output (down to the trigger length, 1) are looked for in the references alone. The draft
    is what follows the first occurrence in the first document that has one, to that document's end and so many tokens
    that a step feeds 20. Neither the prompt nor the output is copied from; only where a trace has no references does
    the prompt stand in, as a text to correct would be given to LLMA.

    Args:
        trace: what to replay.
        budget: draft nodes a step at most.
    """

    def __init__(self, trace: Trace, *, budget: int) -> None:
        super().__init__(trace, budget=min(budget, _BLOCK - 1))
        documents = trace.references or [trace.prompt]
        self._references = Text(token for document in documents for token in (*document, _BORDER))
        self._written: list[int] = []

    def observe(self, tokens: Sequence[int]) -> None:
        """See `Peer`."""
        self._written.extend(tokens)

    def draft(self, truth: Sequence[int]) -> Tree:
        """See `Peer`."""
        found = list(self._references.behind(self._written, _LONGEST))
        if not found:
            return Tree()
        start = found[-1][0]
        copied = self._references.tokens[start : start + self.budget]
        return Tree.chain(copied[: copied.index(_BORDER)] if _BORDER in copied else copied)
