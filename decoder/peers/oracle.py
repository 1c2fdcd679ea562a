"""The copy-oracle: the bound for drafting by copying one span a step."""

from collections.abc import Sequence

from refdraft.decoder.peers.peer import Peer, flat_context
from refdraft.decoder.peers.tree import Tree
from refdraft.decoder.replay import Trace


class CopyOracle(Peer):
    """Knows what comes next, and drafts the longest beginning of it that stands anywhere in the context.

    Taking the longest copy at once is best: what is left of a copy can be copied too from later on in the output. So
    no method needs fewer steps that drafts one run of the context a step, of up to as many tokens. It is no bound for
    methods that branch, or that go over an edit within a draft.

    Args:
        trace: what to replay.
        budget: draft nodes a step at most.
        span: tokens that may be copied at a step; None leaves it to the budget.
    """

    def __init__(self, trace: Trace, *, budget: int, span: int | None = 16) -> None:
        super().__init__(trace, budget=budget if span is None else min(budget, span))
        self._context = flat_context(trace)

    def observe(self, tokens: Sequence[int]) -> None:
        """See `Peer`."""
        self._context.extend(tokens)

    def draft(self, truth: Sequence[int]) -> Tree:
        """See `Peer`."""
        wanted = truth[: self.budget]
        return Tree.chain(wanted[: self._context.longest_prefix(wanted)])
