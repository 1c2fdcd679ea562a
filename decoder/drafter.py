"""One request's drafter: its sources, what they propose, and what was learned of them."""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from refdraft.decoder.draft import EMPTY, Draft, Origin
from refdraft.decoder.odds import AcceptanceRates, SurvivalOdds
from refdraft.decoder.sources import ContextSource, DocumentSource, Span


class Drafter:
    """Follows one context and proposes the most promising span of all its sources.

    Args:
        prompt: token ids of the prompt.
        documents: token ids of the documents of each further source, by the source's name, best source first.
        copy_prompt: whether spans may be copied from the prompt.
        copy_output: whether spans may be copied from the output so far.
        vocabulary_size: a span ends before the first id that the target does not know.
        rates: how reliable the sources were across requests; learned from and added to.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        documents: Mapping[str, Sequence[Sequence[int]]],
        *,
        copy_prompt: bool = True,
        copy_output: bool = True,
        vocabulary_size: int,
        rates: AcceptanceRates,
    ) -> None:
        sources = [DocumentSource(name, texts) for name, texts in documents.items()]
        for source in sources:
            for token in prompt:
                source.advance(token)
        self._sources: list[DocumentSource | ContextSource] = [*sources]
        if copy_prompt or copy_output:
            self._sources.append(ContextSource(prompt, copy_prompt=copy_prompt, copy_output=copy_output))
        self._odds = SurvivalOdds(rates)
        self._vocabulary_size = vocabulary_size
        self._proposals: list[Span] = []

    def propose(self, limit: int) -> Draft:
        """The best chain of at most `limit` tokens."""
        self._proposals = [span for source in self._sources if (span := source.propose(limit))]
        best: Span | None = None
        best_survival: list[float] = []
        for span in self._proposals:
            survival = self._odds.survival(span.source, span.match_length, self._known_tokens(span))
            if sum(survival) > sum(best_survival):
                best, best_survival = span, survival
        if best is None:
            return EMPTY
        size = len(best_survival)
        return Draft.chain(best.tokens[:size], self._credit(best)[:size], best_survival)

    def _credit(self, best: Span) -> tuple[Origin, ...]:
        """The origins of a span; what a better source proposed alike is credited to that source."""
        first = next(span for span in self._proposals if span.tokens[0] == best.tokens[0])
        pairs = zip(first.tokens, best.tokens, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return first.origins[:shared] + best.origins[shared:]

    def observe(self, tokens: Sequence[int]) -> None:
        """Learn from the tokens just committed, and move on behind them."""
        for span in self._proposals:
            self._odds.observe(span.source, span.match_length, span.tokens, tokens)
        self._proposals = []
        for source in self._sources:
            for token in tokens:
                source.advance(token)

    def _known_tokens(self, span: Span) -> int:
        """Tokens of the span before the first that the target's vocabulary lacks."""
        size = self._vocabulary_size
        return next((i for i, token in enumerate(span.tokens) if token >= size), len(span.tokens))
