"""Drafting methods measured without a model: a recorded output stands for what the target would choose."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import thread_time
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.drafter import Drafter
from refdraft.decoder.odds import SurvivalOdds
from refdraft.decoder.reliability import Reliability
from refdraft.decoder.verify import verify


@dataclass(frozen=True, slots=True)
class Trace:
    """Token ids of one recorded generation."""

    prompt: Sequence[int]
    references: Sequence[Sequence[int]]
    output: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Totals over all traces. The first token of each output counts as the prefill's.

    Attributes:
        tokens: committed tokens.
        steps: passes of the target.
        drafted: draft nodes that were verified.
        accepted: draft nodes that the output holds.
        seconds: CPU time of each step's drafting; two results are equal whatever theirs are.
    """

    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: Sequence[float] = field(default=(), compare=False, repr=False)

    @property
    def tokens_per_step(self) -> float:
        """Committed tokens divided by steps; 0 without a step."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def drafted_per_step(self) -> float:
        """Draft nodes verified at a step on average; 0 without a step."""
        return self.drafted / self.steps if self.steps else 0.0

    @property
    def acceptance(self) -> float:
        """Accepted draft nodes divided by all of them; 0 without one."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def seconds_per_step(self) -> float:
        """Median CPU time of drafting a step; 0 without a step."""
        return median(self.seconds) if self.seconds else 0.0


class Method(Protocol):
    """A way of drafting, on one trace."""

    def step(self, position: int) -> tuple[int, int]:
        """Draft at `position` of the output: (draft nodes, how many of them the output holds on their best path).

        Positions rise from step to step. What stands before is known to the method.
        """


def replay(traces: Sequence[Trace], method: Callable[[Trace], Method]) -> Iterator[ReplayResult]:
    """Run a method over traces, yielding the totals after each."""
    tokens = steps = drafted = accepted = 0
    seconds: list[float] = []
    for trace in traces:
        run, position = method(trace), 1
        while position < len(trace.output):
            start = thread_time()
            nodes, held = run.step(position)
            seconds.append(thread_time() - start)
            steps, drafted, accepted = steps + 1, drafted + nodes, accepted + held
            position += held + 1
        tokens += max(0, len(trace.output) - 1)
        yield ReplayResult(tokens, steps, drafted, accepted, seconds)


class RefdraftMethod:
    """This project's drafter, drafting all that it finds up to a budget as if width were free.

    Args:
        trace: what to replay.
        budget: draft nodes a step at most.
        classes: int32 [vocabulary], as for `Drafter`.
        odds: shared by the traces of a run, as requests to a server share them.
        branching: whether drafts may branch; else they are chains.
        reliability: takes each draft and what held of it; None for no record.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        budget: int,
        classes: NDArray[np.int32],
        odds: SurvivalOdds,
        branching: bool = True,
        reliability: Reliability | None = None,
    ) -> None:
        self._drafter = Drafter(
            trace.prompt,
            {"references": trace.references},
            output_room=len(trace.output) + 1,
            classes=classes,
            odds=odds,
            branching=branching,
        )
        self._output, self._budget, self._reliability = trace.output, budget, reliability
        self._drafter.observe(trace.output[:1])

    def step(self, position: int) -> tuple[int, int]:
        """See `Method`."""
        draft = self._drafter.propose(self._budget)
        truth = self._output[position:]
        committed: list[int] = []
        held: list[int] = []
        walk = verify(draft, lambda _: truth[len(committed)])
        while len(committed) < len(truth):
            token, node = next(walk)
            committed.append(token)
            if node is None:
                break
            held.append(node)
        self._drafter.observe(committed)
        if self._reliability:
            self._reliability.record(draft, held)
        return len(draft), len(held)
