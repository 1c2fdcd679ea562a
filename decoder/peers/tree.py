"""What peers draft: a tree of tokens, a chain or grown from places of a text by how often each branch stands there."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from refdraft.decoder.peers.text import Text

_ROOT = -1


@dataclass(slots=True)
class Tree:
    """Draft tokens hanging from the last committed token.

    Attributes:
        nodes: (parent node, token) -> node, numbered from 0 in the order they were added; the root is -1.
        count: places at which the nodes' paths stand, summed over the nodes.
    """

    nodes: dict[tuple[int, int], int] = field(default_factory=dict)
    count: int = 0

    @classmethod
    def chain(cls, tokens: Iterable[int]) -> "Tree":
        """A tree without branches."""
        nodes = {(index - 1, token): index for index, token in enumerate(tokens)}
        return cls(nodes, len(nodes))

    def __len__(self) -> int:
        return len(self.nodes)

    def held(self, truth: Iterable[int]) -> int:
        """How many nodes lie on the path that `truth` takes from the root."""
        node, depth = _ROOT, 0
        for token in truth:
            child = self.nodes.get((node, token))
            if child is None:
                break
            node, depth = child, depth + 1
        return depth


def grow(text: Text, places: Sequence[int], budget: int, *, least: float = 1, deepest: int | None = None) -> Tree:
    """Of all trees of at most `budget` nodes, the one whose paths stand at most places.

    A child never stands at more places than its parent, so that taking the highest count first is best; of equal ones
    the one that came up first is taken.

    Args:
        text: what is copied from.
        places: where the paths begin.
        budget: nodes at most.
        least: places at which a path must stand.
        deepest: depth of a node at most; None for no bound.
    """
    tree = Tree()
    heap: list[tuple[int, int, int, int, int, list[int]]] = []  # -count, order, parent, depth, token, places behind it

    def push(parent: int, depth: int, begins: Sequence[int]) -> None:
        if deepest is not None and depth > deepest:
            return
        branches: defaultdict[int, list[int]] = defaultdict(list)
        for place in begins:
            if place < len(text.tokens):
                branches[text.tokens[place]].append(place + 1)
        for token, behind in branches.items():
            if len(behind) >= least:
                heappush(heap, (-len(behind), len(tree) + len(heap), parent, depth, token, behind))

    push(_ROOT, 1, places)
    while heap and len(tree) < budget:
        negative, _, parent, depth, token, behind = heappop(heap)
        node = tree.nodes[parent, token] = len(tree)
        tree.count -= negative
        push(node, depth + 1, behind)
    return tree
