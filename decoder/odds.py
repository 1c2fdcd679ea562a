"""How likely a copied token is to hold: learned while decoding, by source and length of match."""

from collections.abc import Sequence

# Acceptance of a copied token before anything was observed, after a match of 1, 2, 3, ... tokens: of the first
# token of a span, and of later ones, whose match has grown by the tokens that held. Rounded from replays of RAG
# answers and grammar corrections (every second trace; `refdraft bench drafts` names the data).
_FIRST_PRIOR = (0.25, 0.45, 0.52, 0.58, 0.63, 0.67, 0.71, 0.75, 0.78, 0.80, 0.82, 0.84, 0.86, 0.87, 0.88, 0.90)
_LATER_PRIOR = (0.50, 0.65, 0.74, 0.79, 0.82, 0.84, 0.85, 0.86, 0.87, 0.87, 0.88, 0.89, 0.90, 0.90, 0.91, 0.92)
_PRIOR_WEIGHT = 4.0  # observations that the prior counts for
_DECAY = 0.98  # weight left to an observation when the next one of its cell comes

_Cell = tuple[str, int, bool]  # source, match length up to the tables' size, first token of its span


class SurvivalOdds:
    """Acceptance rates, each an exponentially weighted mean that starts from a prior.

    Args:
        prior: odds to start from and to teach along; None starts from rates built in.
    """

    def __init__(self, prior: "SurvivalOdds | None" = None) -> None:
        self._prior = prior
        self._held: dict[_Cell, float] = {}
        self._seen: dict[_Cell, float] = {}

    def survival(self, source: str, match_length: int, tokens: int) -> list[float]:
        """Chance of each of `tokens` tokens copied behind a match of `match_length` >= 1 that all up to it hold."""
        chances: list[float] = []
        chance = 1.0
        for depth in range(tokens):
            chance *= self._acceptance(_cell(source, match_length, depth))
            chances.append(chance)
        return chances

    def observe(self, source: str, match_length: int, span: Sequence[int], truth: Sequence[int]) -> None:
        """Learn from the tokens that were committed where `span` was proposed, whether or not it was drafted."""
        for depth, (proposed, committed) in enumerate(zip(span, truth, strict=False)):
            cell = _cell(source, match_length, depth)
            held = proposed == committed
            self._held[cell] = self._held.get(cell, 0.0) * _DECAY + held
            self._seen[cell] = self._seen.get(cell, 0.0) * _DECAY + 1.0
            if not held:
                break
        if self._prior:
            self._prior.observe(source, match_length, span, truth)

    def _acceptance(self, cell: _Cell) -> float:
        _, length, first = cell
        if self._prior:
            prior = self._prior._acceptance(cell)
        else:
            prior = (_FIRST_PRIOR if first else _LATER_PRIOR)[length - 1]
        return (self._held.get(cell, 0.0) + prior * _PRIOR_WEIGHT) / (self._seen.get(cell, 0.0) + _PRIOR_WEIGHT)


def _cell(source: str, match_length: int, depth: int) -> _Cell:
    return source, min(match_length + depth, len(_LATER_PRIOR)), depth == 0
