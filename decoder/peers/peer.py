"""What all peers share: a trace is replayed, and what they draft is held against its output."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain

from refdraft.decoder.peers.text import Text
from refdraft.decoder.peers.tree import Tree
from refdraft.decoder.replay import Trace


def flat_context(trace: Trace) -> Text:
    """References, in order, and prompt in a row, as a RAG prompt holds them."""
    return Text(chain(*trace.references, trace.prompt))


class Peer(ABC):
    """A published way of drafting, on one trace.

    Args:
        trace: what to replay.
        budget: draft nodes a step at most.
    """

    def __init__(self, trace: Trace, *, budget: int) -> None:
        self.budget = budget
        self._output, self._position = trace.output, 0

    def step(self, position: int) -> tuple[int, int]:
        """See `Method`."""
        self.observe(self._output[self._position : position])
        self._position = position
        truth = self._output[position:]
        draft = self.draft(truth)
        return len(draft), draft.held(truth)

    @abstractmethod
    def observe(self, tokens: Sequence[int]) -> None:
        """Take the tokens just committed."""

    @abstractmethod
    def draft(self, truth: Sequence[int]) -> Tree:
        """A draft of at most `budget` nodes. Only an oracle looks at `truth`, what comes next."""
