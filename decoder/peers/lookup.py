"""Prompt lookup: copy what followed an earlier occurrence of the last few tokens."""

from collections.abc import Sequence

from refdraft.decoder.peers.peer import Peer, flat_context
from refdraft.decoder.peers.tree import Tree
from refdraft.decoder.replay import Trace


class PromptLookup(Peer):
    """Prompt lookup (Saxena 2023), over references, prompt and output in a row.

    The last `longest` tokens are looked for in the context; if they stand nowhere else, one less, down to `shortest`.
    The draft is what follows the first occurrence, up to the end of the context. Known settings:

    - n-grams of 3 to 1 and 10 tokens: the baseline of this project;
    - 2 to 1 and 10 tokens: transformers' `PromptLookupCandidateGenerator` as it comes (`max_matching_ngram_size=2`,
      `num_output_tokens=10`), which takes the first match from the left as well;
    - 5 alone and as many tokens as the budget: vLLM's `NgramProposer` as it comes (`prompt_lookup_min` and
      `prompt_lookup_max` are 5 where neither is given; `num_speculative_tokens` has no default). Of several matches
      of the longest n-gram it takes the earliest too.

    Args:
        trace: what to replay.
        budget: draft nodes a step at most.
        longest: tokens that are looked for at first.
        shortest: tokens that are looked for at last.
        tokens: draft tokens at most; None leaves it to the budget.
    """

    def __init__(
        self, trace: Trace, *, budget: int, longest: int = 3, shortest: int = 1, tokens: int | None = 10
    ) -> None:
        super().__init__(trace, budget=budget if tokens is None else min(budget, tokens))
        self._longest, self._shortest = longest, shortest
        self._context = flat_context(trace)

    def observe(self, tokens: Sequence[int]) -> None:
        """See `Peer`."""
        self._context.extend(tokens)

    def draft(self, truth: Sequence[int]) -> Tree:
        """See `Peer`."""
        context = self._context.tokens
        found = [places for places in self._context.behind(context, self._longest) if len(places) > 1]
        if len(found) < self._shortest:
            return Tree()
        start = found[-1][0]
        return Tree.chain(context[start : start + self.budget])
