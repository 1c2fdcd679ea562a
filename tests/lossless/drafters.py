"""Drafters that know what will be written, and use it well, badly or in bad faith."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from refdraft.decoder.draft import Draft, Origin
from tests.lossless.targets import VOCABULARY

FOREIGN_IDS = (-1, VOCABULARY, 2**40)  # outside the vocabulary
_TWINS = 0.15  # share of a tree's side branches that hold what the trunk holds at their depth

Fault = Literal["propose", "observe", "nothing", "short survivals", "nan survival", "huge survival", "origins"]


@dataclass(frozen=True)
class Drafting:
    """How a request is drafted.

    Attributes:
        kind: "none" is plain decoding, "own" the engine's own drafter with a noisy copy of the output as a
            reference; "chain" and "tree" are a `Scripted` drafter's.
        accuracy: chance of each token to be what will be written there; in a tree of the trunk's tokens.
        seed: of the noise.
        nodes: of a scripted draft, whether or not there is room for them.
        foreign: whether some tokens lie outside the vocabulary.
        fault: what a scripted drafter does wrong, and at which of its calls; None for nothing.
    """

    kind: Literal["none", "own", "chain", "tree"]
    accuracy: float = 1.0
    seed: int = 0
    nodes: int = 4
    foreign: bool = False
    fault: tuple[Fault, int] | None = None

    def noisy(self, guide: Sequence[int]) -> list[int]:
        """A copy of the output with wrong tokens in it."""
        rng = np.random.default_rng(self.seed)
        return [token if rng.random() < self.accuracy else int(rng.integers(VOCABULARY)) for token in guide]


class Scripted:
    """Stands in for a `Drafter`.

    Args:
        plan: what to draft.
        guide: the output to come, and what would come behind its end.
    """

    def __init__(self, plan: Drafting, guide: Sequence[int]) -> None:
        self._plan, self._guide = plan, guide
        self._rng = np.random.default_rng(plan.seed)
        self._calls = self._written = 0
        self.faulted = False  # whether the fault has come

    def propose(self, limit: int) -> Draft:
        """A draft, as large as the plan wants it."""
        fault = self._fault(observing=False)
        if fault == "propose":
            raise RuntimeError("this drafter fails")
        if fault == "nothing":
            return cast("Draft", None)
        depths, tokens, parents, tip = [0], [], [], -1
        for node in range(self._plan.nodes):
            grows = self._plan.kind == "chain" or self._rng.random() < 0.5
            parent = tip if grows else int(self._rng.integers(-1, node))
            tip = node if grows else tip
            depths.append(depths[parent + 1] + 1)
            parents.append(parent)
            tokens.append(self._token(depths[-1], self._plan.accuracy if grows else _TWINS))
        origins = [Origin("script", 0, token) for token in tokens]
        survivals = [0.9**depth for depth in depths[1:]]
        if fault == "short survivals":
            survivals.pop()
        elif fault in ("nan survival", "huge survival"):
            survivals[0] = np.nan if fault == "nan survival" else 2.0
        elif fault == "origins":
            origins[0] = cast("Origin", "here")
        return Draft(tuple(tokens), tuple(parents), tuple(origins), tuple(survivals))

    def observe(self, tokens: Sequence[int], logits: object = None) -> None:
        """Follow the output."""
        self._written += len(tokens)
        if self._fault(observing=True):
            raise RuntimeError("this drafter fails")

    def _token(self, depth: int, accuracy: float) -> int:
        place = self._written + depth - 1
        if self._plan.foreign and self._rng.random() < 0.2:
            return int(self._rng.choice(FOREIGN_IDS))
        if place < len(self._guide) and self._rng.random() < accuracy:
            return self._guide[place]
        return int(self._rng.integers(VOCABULARY))

    def _fault(self, *, observing: bool) -> Fault | None:
        """What this call is to do wrong."""
        if self._plan.fault is None or (self._plan.fault[0] == "observe") != observing:
            return None
        fault, at = self._plan.fault
        self._calls += 1
        self.faulted = self._calls > at
        return fault if self.faulted else None
