"""SuffixDecoding: of all suffixes' continuations, the tree with the highest expected length."""

from collections.abc import Sequence

from refdraft.decoder.peers.peer import Peer, flat_context
from refdraft.decoder.peers.tree import Tree, grow
from refdraft.decoder.replay import Trace

_LONGEST = 64  # tokens of the suffix
_LEAST_SHARE = 0.1


class SuffixDecoding(Peer):
    """SuffixDecoding (Oliaro et al. 2024), with the rules of arctic-inference's program.

    For every suffix of the context (up to 64 tokens) that stands elsewhere, a tree of its continuations is grown by
    taking the likeliest node again and again: the chance of a node is the share of the suffix's occurrences, the
    context's own end being one, that its path follows. Nodes under 0.1 are left out, and the tree has at most `alpha`
    nodes for each token of the suffix. The tree whose chances have the highest sum is the draft; the longer suffix
    wins a tie. The paper has `alpha` from 1 to 4, the program comes with 1.

    There are no former outputs here, so there is one suffix tree, that of references, prompt and output in a row. The
    program's bound of the tree's depth, suffix and draft together, is left out: it would only shorten drafts.

    Args:
        trace: what to replay.
        budget: draft nodes a step at most.
        alpha: draft nodes for each token of the suffix.
    """

    def __init__(self, trace: Trace, *, budget: int, alpha: int = 1) -> None:
        super().__init__(trace, budget=budget)
        self._alpha = alpha
        self._context = flat_context(trace)

    def observe(self, tokens: Sequence[int]) -> None:
        """See `Peer`."""
        self._context.extend(tokens)

    def draft(self, truth: Sequence[int]) -> Tree:
        """See `Peer`."""
        # Suffixes with as many occurrences have the same ones, and the longest of them may draft most: it wins.
        suffixes: dict[int, tuple[int, list[int]]] = {}
        for size, places in enumerate(self._context.behind(self._context.tokens, _LONGEST), start=1):
            if len(places) > 1:
                suffixes[len(places)] = size, places
        best, best_score = Tree(), 0.0
        for count, (size, places) in suffixes.items():
            limit = min(self.budget, self._alpha * size)
            tree = grow(self._context, places, limit, least=_LEAST_SHARE * count)
            if tree.count / count >= best_score:
                best, best_score = tree, tree.count / count
        return best
