"""REST: a trie of what followed all occurrences of the longest known suffix."""

from collections.abc import Sequence

from refdraft.decoder.peers.peer import Peer, flat_context
from refdraft.decoder.peers.tree import Tree, grow
from refdraft.decoder.replay import Trace

_LONGEST, _SHORTEST = 16, 2  # tokens of the suffix
_HITS = 5000
_DEPTH = 10  # tokens that are read behind a hit


class Rest(Peer):
    """REST (He et al. 2023, "REST: Retrieval-Based Speculative Decoding").

    The longest suffix of the context, of 16 to 2 tokens, that stands elsewhere is looked up; the 10 tokens behind each
    of up to 5,000 hits go into a trie, and the nodes that most hits share are the draft, as many as the budget (the
    program drafts 64). REST reads a large datastore; here it is given what all methods are given: references, prompt
    and output in a row. The program breaks ties by chance of hashing; here the shallower, then the earlier one wins.

    Args:
        trace: what to replay.
        budget: draft nodes a step at most.
    """

    def __init__(self, trace: Trace, *, budget: int) -> None:
        super().__init__(trace, budget=budget)
        self._context = flat_context(trace)

    def observe(self, tokens: Sequence[int]) -> None:
        """See `Peer`."""
        self._context.extend(tokens)

    def draft(self, truth: Sequence[int]) -> Tree:
        """See `Peer`."""
        found = [places for places in self._context.behind(self._context.tokens, _LONGEST) if len(places) > 1]
        if len(found) < _SHORTEST:
            return Tree()
        return grow(self._context, found[-1][:_HITS], self.budget, deepest=_DEPTH)
