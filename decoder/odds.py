"""How likely a copied token is to hold: learned while decoding, by source and length of match."""

import math
from collections.abc import Sequence

# Acceptance of a copied token before anything was observed, after a match of 1, 2, 3, ... tokens: of the first
# token of a span, and of later ones, whose match has grown by the tokens that held. Rounded down from replays of
# recorded RAG answers and grammar corrections, since of several spans the one that looks best is chosen.
_FIRST_PRIOR = (0.15, 0.32, 0.42, 0.50, 0.56, 0.60, 0.64, 0.68, 0.71, 0.74, 0.76, 0.78, 0.80, 0.82, 0.84, 0.86)
_LATER_PRIOR = (0.40, 0.55, 0.66, 0.73, 0.78, 0.80, 0.82, 0.83, 0.84, 0.85, 0.86, 0.87, 0.88, 0.89, 0.90, 0.91)
_PRIOR_WEIGHT = 10.0  # observations that the prior counts for
_DECAY = 0.995  # weight left to an observation when the next one of its cell comes
_LEARNING_RATE = 0.1  # of a request's bias: some 30 observations move it to where it belongs

_Cell = tuple[str, int, bool]  # source, match length up to the tables' size, first token of its span


class AcceptanceRates:
    """Acceptance of copied tokens across requests: exponentially weighted means that start from a prior."""

    def __init__(self) -> None:
        self._held: dict[_Cell, float] = {}
        self._seen: dict[_Cell, float] = {}

    def rate(self, cell: _Cell) -> float:
        """The rate of a cell, in (0, 1)."""
        _, length, first = cell
        prior = (_FIRST_PRIOR if first else _LATER_PRIOR)[length - 1]
        return (self._held.get(cell, 0.0) + prior * _PRIOR_WEIGHT) / (self._seen.get(cell, 0.0) + _PRIOR_WEIGHT)

    def count(self, cell: _Cell, *, held: bool) -> None:
        """Add an observation."""
        self._held[cell] = self._held.get(cell, 0.0) * _DECAY + held
        self._seen[cell] = self._seen.get(cell, 0.0) * _DECAY + 1.0


class SurvivalOdds:
    """One request's odds: the common rates, shifted in log-odds by how this request departs from them.

    An answer copies or it does not; the bias, learned online by logistic regression, finds that out within
    some tokens.

    Args:
        rates: what all requests share, which this one learns from and teaches.
    """

    def __init__(self, rates: AcceptanceRates) -> None:
        self._rates = rates
        self._bias = 0.0

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
            self._bias += _LEARNING_RATE * (held - self._acceptance(cell))
            self._rates.count(cell, held=held)
            if not held:
                break

    def _acceptance(self, cell: _Cell) -> float:
        rate = self._rates.rate(cell)
        return 1.0 / (1.0 + (1.0 / rate - 1.0) * math.exp(-self._bias))


def _cell(source: str, match_length: int, depth: int) -> _Cell:
    return source, min(match_length + depth, len(_LATER_PRIOR)), depth == 0
