"""The draft: a tree of candidate tokens hanging from the last committed token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Origin(NamedTuple):
    """Where a draft token was copied from."""

    source: str
    document: int  # position of the document within its source
    offset: int  # token offset within the document


@dataclass(frozen=True, slots=True)
class Draft:
    """Candidate tokens in topological order: a parent comes before its children.

    Attributes:
        tokens: token ids, one a node.
        parents: index of each node's parent; -1 is the root, the last committed token.
        origins: where each node's token was copied from.
        survivals: the chance of each node that it holds and all before it do.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    origins: tuple[Origin, ...] = ()
    survivals: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.parents) == len(self.origins) == len(self.survivals):
            raise ValueError("tokens, parents, origins and survivals must be of one length")
        if any(not -1 <= parent < node for node, parent in enumerate(self.parents)):
            raise ValueError("a parent must come before its children")

    @classmethod
    def chain(cls, tokens: Sequence[int], origins: Sequence[Origin], survivals: Sequence[float]) -> "Draft":
        """A tree without branches."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(origins), tuple(survivals))

    def __len__(self) -> int:
        return len(self.tokens)

    def head(self, nodes: int) -> "Draft":
        """The tree of the first `nodes` nodes."""
        return Draft(self.tokens[:nodes], self.parents[:nodes], self.origins[:nodes], self.survivals[:nodes])

    def trunk(self) -> "Draft":
        """The chain that the first nodes form, up to where the tree branches off it."""
        size = next((node for node, parent in enumerate(self.parents) if parent != node - 1), len(self))
        return self.head(size)

    def pruned(self, keep: Sequence[bool]) -> "Draft":
        """The tree without the nodes whose entry in `keep` is False and without what hangs from them."""
        new: dict[int, int] = {-1: -1}  # index of a kept node -> its index in the pruned tree
        for node, parent in enumerate(self.parents):
            if keep[node] and parent in new:
                new[node] = len(new) - 1
        nodes = [node for node in new if node >= 0]
        return Draft(
            tuple(self.tokens[node] for node in nodes),
            tuple(new[self.parents[node]] for node in nodes),
            tuple(self.origins[node] for node in nodes),
            tuple(self.survivals[node] for node in nodes),
        )

    def child(self, node: int, token: int) -> int | None:
        """The first child of `node` (-1: of the root) that holds `token`, or None."""
        for candidate in range(node + 1, len(self.tokens)):
            if self.parents[candidate] == node and self.tokens[candidate] == token:
                return candidate
        return None

    def depths(self) -> list[int]:
        """Distance of each node from the root; a child of the root has depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def visibility(self) -> NDArray[np.bool_]:
        """Which nodes attend to which: bool [nodes + 1, nodes + 1], row and column 0 being the root.

        A node sees the root, its ancestors and itself.
        """
        size = len(self.tokens) + 1
        visible = np.eye(size, dtype=np.bool_)
        visible[:, 0] = True
        for node, parent in enumerate(self.parents, start=1):
            visible[node] |= visible[parent + 1]
        return visible


EMPTY = Draft()
