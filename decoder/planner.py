"""How much to draft: the width of a pass that promises its rows the most tokens a second.

All rows of a pass have one width, so a draft makes the pass slower for all of them, and rows that need less are padded.
Of all widths the one is taken that raises the rows' tokens a second most in the geometric mean (proportional fairness,
Kelly 1997): with one row that is tokens a second; with several, none is slowed down much for another's sake, as the sum
would allow. Plain decoding is among the widths, and so are those wider than any draft, since a wider pass may be the
cheaper one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_MARGIN = 0.03  # of speed, which a pass that costs more than plain decoding's must promise: less may be noise
_LONGEST_DELAY = 1.0  # passes; when proposing seems to take longer the machine was at something else


class Plan(NamedTuple):
    """The shape of a pass.

    Attributes:
        width: columns: a row's newest token and up to width - 1 drafted ones.
        prices: for each row what its draft costs all rows, in passes of plain decoding; it is worth it if as many
            draft tokens are accepted.
    """

    width: int
    prices: tuple[float, ...]


def plan_pass(
    survivals: Sequence[Sequence[float]],
    widths: NDArray[np.int64],
    seconds: NDArray[np.float64],
    *,
    hope: NDArray[np.float64] | float = 1.0,
    drafting_s: float = 0.0,
) -> Plan:
    """Choose the width of a pass.

    Args:
        survivals: for each decoding row, the chance of each proposed token to be accepted.
        widths: int64 [n], the columns that the pass may have, ascending; the first is plain decoding's.
        seconds: float64 [n], what the pass costs with each.
        hope: float64 [n], what share of that it may cost at best, which is good enough to try; prices are as expected.
        drafting_s: seconds that the proposals took. They are spent, so they count in the prices alone.
    """
    if not any(survivals):
        return Plan(int(widths[0]), (0.0,) * len(survivals))
    rows, hoped = len(survivals), seconds * hope
    slower = hoped / hoped[0]
    wishes = np.log1p(_expected(survivals, widths))
    gain = wishes.sum(0) - rows * np.log(slower)
    best = int(np.argmax(gain - rows * _MARGIN * (slower > 1.0)))
    shares = wishes[:, best] / max(float(wishes[:, best].sum()), float(np.finfo(np.float64).tiny))
    proposed = np.array([bool(chances) for chances in survivals])
    delay = min(drafting_s / seconds[0], _LONGEST_DELAY)
    extra = seconds[best] / seconds[0] - 1.0
    prices = rows * (extra * shares + delay * proposed / proposed.sum())
    return Plan(int(widths[best]), tuple(prices.tolist()))


def _expected(survivals: Sequence[Sequence[float]], widths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Draft tokens that each row expects to be accepted in passes of so many columns: float64 [rows, n]."""
    chances = np.zeros((len(survivals), widths[-1]))
    for row, proposed in zip(chances, survivals, strict=True):
        row[1 : len(proposed) + 1] = proposed[: len(row) - 1]
    expected: NDArray[np.float64] = chances.cumsum(1)[:, widths - 1]
    return expected
