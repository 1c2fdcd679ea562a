"""How likely a copied token is to hold: learned while decoding, by source and length of match."""

from collections.abc import Sequence

# Acceptance of the next copied token after a match of 1, 2, 3, ... tokens, before anything was observed.
_PRIOR = (0.45, 0.60, 0.70, 0.76, 0.80, 0.83, 0.85, 0.87, 0.88, 0.89, 0.90, 0.91, 0.92, 0.925, 0.93, 0.935)
_PRIOR_WEIGHT = 4.0  # observations that the prior counts for
_DECAY = 0.98  # weight left to an observation when the next one of its cell comes


class SurvivalOdds:
    """Acceptance rates by (source, match length), an exponentially weighted mean with a prior.

    A copied token at depth d behind a match of m tokens is judged as one behind a match of m + d - 1, which is
    what the match will have grown to if all tokens before it hold.
    """

    def __init__(self, prior: "SurvivalOdds | None" = None) -> None:
        self._prior = prior
        self._held: dict[tuple[str, int], float] = {}
        self._seen: dict[tuple[str, int], float] = {}

    def acceptance(self, source: str, match_length: int) -> float:
        """Chance that the token behind a match of `match_length` >= 1 tokens is what the target writes."""
        cell = source, min(match_length, len(_PRIOR))
        prior = self._prior.acceptance(*cell) if self._prior else _PRIOR[cell[1] - 1]
        held, seen = self._held.get(cell, 0.0), self._seen.get(cell, 0.0)
        return (held + prior * _PRIOR_WEIGHT) / (seen + _PRIOR_WEIGHT)

    def survival(self, source: str, match_length: int, tokens: int) -> list[float]:
        """Chance of each of `tokens` copied tokens that it and all before it hold."""
        chances: list[float] = []
        chance = 1.0
        for depth in range(tokens):
            chance *= self.acceptance(source, match_length + depth)
            chances.append(chance)
        return chances

    def observe(self, source: str, match_length: int, span: Sequence[int], truth: Sequence[int]) -> None:
        """Learn from the tokens that were committed where `span` was proposed, whether or not it was drafted."""
        for depth, (proposed, committed) in enumerate(zip(span, truth, strict=False)):
            held = proposed == committed
            self._count(source, match_length + depth, held)
            if not held:
                break
        if self._prior:
            self._prior.observe(source, match_length, span, truth)

    def _count(self, source: str, match_length: int, held: bool) -> None:
        cell = source, min(match_length, len(_PRIOR))
        self._held[cell] = self._held.get(cell, 0.0) * _DECAY + held
        self._seen[cell] = self._seen.get(cell, 0.0) * _DECAY + 1.0
