"""What an output may look like: a mask over each next token, and drafts cut to it."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.draft import Draft


class Constraint(Protocol):
    """Follows one output and says what may come next."""

    def allowed(self) -> NDArray[np.bool_]:
        """The tokens that may come next: bool [vocabulary], not changed later."""
        ...

    def accepts(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may come next, one after the other; changes nothing."""
        ...

    def advance(self, token: int) -> None:
        """Take the token that was committed.

        Raises:
            ValueError: `allowed` forbids it.
        """
        ...


def permitted(draft: Draft, constraint: Constraint) -> Draft:
    """The draft without the nodes that the constraint forbids, and without what hangs from them."""
    keep = [False] * len(draft)
    inner = set(draft.parents)
    for leaf in (node for node in range(len(draft)) if node not in inner):
        path: list[int] = []
        node = leaf
        while node >= 0:
            path.append(node)
            node = draft.parents[node]
        path.reverse()
        for allowed in path[: constraint.accepts([draft.tokens[node] for node in path])]:
            keep[allowed] = True
    return draft.pruned(keep)
