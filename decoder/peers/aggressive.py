"""Aggressive decoding: the whole source is the draft, taken up again behind an edit at a unique suffix."""

from collections.abc import Sequence

from refdraft.decoder.peers.peer import Peer, flat_context
from refdraft.decoder.peers.tree import Tree
from refdraft.decoder.replay import Trace


class AggressiveDecoding(Peer):
    """Aggressive decoding (Sun et al. 2021), made for grammar correction, whose output is nearly its input.

    The output is held to be the source, from its first token on: all that is left of it is the draft. Where the
    target departs, decoding is plain until some suffix of the output stands exactly once in the source; the draft
    goes on behind it. The source is references and prompt in a row, and the budget bounds what is drafted at a step.

    Args:
        trace: what to replay.
        budget: draft nodes a step at most.
    """

    def __init__(self, trace: Trace, *, budget: int) -> None:
        super().__init__(trace, budget=budget)
        self._source = flat_context(trace)
        self._written: list[int] = []
        self._next: int | None = 0  # place in the source of the token that is expected; None while decoding is plain

    def observe(self, tokens: Sequence[int]) -> None:
        """See `Peer`."""
        for token in tokens:
            self._written.append(token)
            if self._next is not None and self._source.tokens[self._next : self._next + 1] == [token]:
                self._next += 1
            else:
                self._next = self._unique_place()

    def draft(self, truth: Sequence[int]) -> Tree:
        """See `Peer`."""
        if self._next is None:
            return Tree()
        return Tree.chain(self._source.tokens[self._next : self._next + self.budget])

    def _unique_place(self) -> int | None:
        suffixes = self._source.behind(self._written, len(self._written))
        return next((places[0] for places in suffixes if len(places) == 1), None)
