"""How much to draft: the width of a pass that promises the most committed tokens a second."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PassCost:
    """Cost of one pass by the number of tokens it runs (rows x width), linear between measured points.

    An empty table means that width is free: then everything that is proposed is drafted.
    """

    seconds: Mapping[int, float] = field(default_factory=dict)

    def __call__(self, tokens: int) -> float:
        """Expected cost of a pass over `tokens` tokens, in the unit of the table."""
        if not self.seconds:
            return 1.0
        points = sorted(self.seconds)
        above = next((p for p in points if p >= tokens), None)
        if above is None:
            return self.seconds[points[-1]] * tokens / points[-1]
        below = max((p for p in points if p <= tokens), default=above)
        if above == below:
            return self.seconds[above]
        share = (tokens - below) / (above - below)
        return self.seconds[below] + share * (self.seconds[above] - self.seconds[below])


def plan_width(survivals: Sequence[Sequence[float]], cost: PassCost, *, rows: int) -> int:
    """The number of draft tokens a row that maximises expected committed tokens per second.

    Args:
        survivals: for each decoding row, the chance of each proposed token to be accepted.
        cost: cost of a pass by tokens.
        rows: rows of the pass, those that only run along included.

    Returns:
        Draft tokens a row; rows that have fewer are padded. 0 is plain decoding.
    """
    gain = float(len(survivals))
    best, best_rate = 0, gain / cost(rows)
    for width in range(1, max(map(len, survivals), default=0) + 1):
        gain += sum(row[width - 1] for row in survivals if len(row) >= width)
        rate = gain / cost(rows * (width + 1))
        if rate > best_rate:
            best, best_rate = width, rate
    return best
