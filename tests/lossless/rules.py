"""Toy stop rules and constraints: what a request may bring along that keeps state."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.lossless.targets import VOCABULARY


class EndsWith:
    """A stop rule: True where the output ends with one of these sequences."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._sequences = [list(sequence) for sequence in sequences]
        self._output: list[int] = []

    def __call__(self, token: int) -> bool:
        self._output.append(token)
        return any(self._output[-len(sequence) :] == sequence for sequence in self._sequences)


@dataclass(frozen=True)
class Residues:
    """The rules of an automaton of n states: in state s only tokens with `token % n in allowed[s]` may come,
    and lead to state (s + token) % n. A state that allows nothing is a dead end.
    """

    allowed: tuple[frozenset[int], ...]

    def follow(self) -> "ResiduesFollower":
        """A constraint at the start of an output."""
        return ResiduesFollower(self.allowed)


class ResiduesFollower:
    """A constraint, as `decoder/constraint.py` describes it."""

    def __init__(self, allowed: Sequence[frozenset[int]]) -> None:
        self._allowed, self._state = allowed, 0

    def allowed(self) -> NDArray[np.bool_]:
        """The tokens that may come next."""
        return np.array([self._permits(self._state, token) for token in range(VOCABULARY)])

    def accepts(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may come next."""
        state = self._state
        for count, token in enumerate(tokens):
            if not self._permits(state, token):
                return count
            state = (state + token) % len(self._allowed)
        return len(tokens)

    def advance(self, token: int) -> None:
        """Take the token that was committed."""
        if not self._permits(self._state, token):
            raise ValueError(f"token {token} is forbidden")
        self._state = (self._state + token) % len(self._allowed)

    def _permits(self, state: int, token: int) -> bool:
        return token % len(self._allowed) in self._allowed[state]
