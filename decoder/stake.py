"""What a request may still lose by drafting: the guard against a drafter whose odds are wrong."""

from dataclasses import dataclass

_GIVEN = 4.0  # passes: 1.6 % of an answer of 256 tokens
_MOST = 12.0
_FIRST_REST, _LONGEST_REST = 8, 128  # steps


@dataclass(slots=True)
class Stake:
    """An account of what drafting won a request and what it cost, in passes of plain decoding.

    Odds learn, also from what is not drafted, and the planner believes them. What they still get wrong is paid from
    here. When nothing is left the request rests: it is decoded plainly for some steps, which earns it one pass. Each
    rest is twice as long as the one before, up to a limit, until drafting has won much again. So a drafter that is
    always wrong costs an answer of 256 tokens 4 passes, one for each of 5 rests, and what its last draft cost.

    Attributes:
        left: passes that may be lost; below 0 where a draft cost more than was left.
        rest: steps that the next rest takes.
        resting: steps of this rest that are left.
    """

    left: float = _GIVEN
    rest: int = _FIRST_REST
    resting: int = 0

    def settle(self, won: int, price: float) -> None:
        """Account for a step in which `won` draft tokens were accepted at a cost of `price` passes."""
        if self.resting:
            self.resting -= 1
            self.left += not self.resting
        else:
            self.left = min(self.left + won - price, _MOST)
        if self.left == _MOST:
            self.rest = _FIRST_REST
        elif self.left <= 0.0 and not self.resting:
            self.resting, self.rest = self.rest, min(2 * self.rest, _LONGEST_REST)
