from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from refdraft.decoder.constraint import Constraint, permitted
from refdraft.decoder.draft import EMPTY, Draft, Origin

VOCABULARY = 3


class Words:
    """A constraint that lists every output it allows."""

    def __init__(self, words: set[tuple[int, ...]]) -> None:
        self._prefixes = {word[:length] for word in words for length in range(len(word) + 1)}
        self._output: tuple[int, ...] = ()

    def allowed(self) -> NDArray[np.bool_]:
        return np.array([(*self._output, token) in self._prefixes for token in range(VOCABULARY)])

    def accepts(self, tokens: Sequence[int]) -> int:
        lengths = range(1, len(tokens) + 1)
        return sum((*self._output, *tokens[:length]) in self._prefixes for length in lengths)

    def advance(self, token: int) -> None:
        if not self.allowed()[token]:
            raise ValueError(f"token {token} is forbidden")
        self._output += (token,)


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(0, 10))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    tokens = tuple(draw(st.integers(0, VOCABULARY - 1)) for _ in range(size))
    return Draft(tokens, parents, tuple(Origin("corpus", 0, node) for node in range(size)), (0.5,) * size)


def words() -> st.SearchStrategy[set[tuple[int, ...]]]:
    return st.sets(st.lists(st.integers(0, VOCABULARY - 1), max_size=6).map(tuple), max_size=12)


def texts(draft: Draft) -> list[tuple[int, ...]]:
    """The tokens from the root to each node, that node's own last."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def follows(constraint: Constraint, tokens: Sequence[int]) -> bool:
    """Whether each of the tokens is allowed where the ones before it were taken."""
    for token in tokens:
        if not constraint.allowed()[token]:
            return False
        constraint.advance(token)
    return True


@settings(deadline=None, derandomize=True, max_examples=300)
@given(trees(), words())
def test_the_nodes_that_stay_are_those_whose_whole_path_is_allowed(draft: Draft, allowed: set[tuple[int, ...]]) -> None:
    kept = permitted(draft, Words(allowed))
    expected = [node for node, text in enumerate(texts(draft)) if follows(Words(allowed), text)]
    assert [origin.offset for origin in kept.origins] == expected
    assert texts(kept) == [texts(draft)[node] for node in expected]


def test_a_draft_that_is_allowed_stays_as_it_is() -> None:
    draft = Draft.chain([0, 1, 2], [Origin("prompt", 0, offset) for offset in range(3)], (1.0,) * 3)
    assert permitted(draft, Words({(0, 1, 2, 0)})) == draft
    assert permitted(EMPTY, Words(set())) == EMPTY


def test_a_chain_is_cut_where_the_constraint_forbids_it() -> None:
    draft = Draft.chain([0, 1, 2], [Origin("prompt", 0, offset) for offset in range(3)], (1.0,) * 3)
    constraint = Words({(2, 0, 1, 1)})
    constraint.advance(2)
    assert permitted(draft, constraint).tokens == (0, 1)
    assert constraint.accepts([0, 1, 1]) == 3  # asking changed nothing
