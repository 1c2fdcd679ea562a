"""Past outputs to draft from: what was answered lately is often answered alike again."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_NAMESPACES = 1024


@dataclass(slots=True)
class _Past:
    """One namespace's outputs as (time, token ids), newest first."""

    outputs: deque[tuple[float, tuple[int, ...]]] = field(default_factory=deque)
    tokens: int = 0


class History:
    """Outputs by namespace, bounded in tokens and in time. Safe in any thread.

    What is in one namespace is never seen from another, so a namespace must not be shared by callers who may not know
    of each other: how fast an answer comes tells whether one like it was given before.

    Args:
        limit: tokens that a namespace keeps, its newest outputs; 0 keeps nothing.
        lifetime_s: seconds until an output is forgotten.
        clock: seconds from any start.
    """

    def __init__(self, limit: int, lifetime_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._lifetime_s, self._clock = limit, lifetime_s, clock
        self._pasts: OrderedDict[str, _Past] = OrderedDict()  # the one used last comes last
        self._lock = threading.Lock()

    def add(self, namespace: str, tokens: Sequence[int]) -> None:
        """Remember an output."""
        if not 0 < len(tokens) <= self._limit:
            return
        with self._lock:
            past = self._pasts.setdefault(namespace, _Past())
            self._pasts.move_to_end(namespace)
            past.outputs.appendleft((self._clock(), tuple(tokens)))
            past.tokens += len(tokens)
            self._forget(past)
            if len(self._pasts) > _NAMESPACES:
                self._pasts.popitem(last=False)

    def outputs(self, namespace: str) -> list[tuple[int, ...]]:
        """Token ids of the outputs in a namespace, newest first."""
        with self._lock:
            past = self._pasts.get(namespace)
            if past is None:
                return []
            self._forget(past)
            return [tokens for _, tokens in past.outputs]

    def _forget(self, past: _Past) -> None:
        oldest = self._clock() - self._lifetime_s
        while past.outputs and (past.tokens > self._limit or past.outputs[-1][0] < oldest):
            past.tokens -= len(past.outputs.pop()[1])
