import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.draft import EMPTY, Draft, Origin


def origins(count: int) -> tuple[Origin, ...]:
    return tuple(Origin("references", 0, offset) for offset in range(count))


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(0, 9))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    return Draft(tuple(draw(st.integers(0, 3)) for _ in range(size)), parents, origins(size), (1.0,) * size)


def ancestors(draft: Draft, node: int) -> set[int]:
    return {node} | (ancestors(draft, draft.parents[node]) if node >= 0 else set())


@settings(deadline=None, derandomize=True)
@given(trees())
def test_a_node_sees_the_root_its_ancestors_and_itself(draft: Draft) -> None:
    expected = np.zeros((len(draft) + 1, len(draft) + 1), np.bool_)
    for node in range(-1, len(draft)):
        for seen in ancestors(draft, node):
            expected[node + 1, seen + 1] = True
    assert np.array_equal(draft.visibility(), expected)
    assert draft.depths() == [len(ancestors(draft, node)) - 1 for node in range(len(draft))]


@settings(deadline=None, derandomize=True)
@given(trees(), st.integers(0, 9))
def test_any_head_of_a_tree_is_a_tree(draft: Draft, nodes: int) -> None:
    head = draft.head(nodes)
    assert len(head) == min(nodes, len(draft))
    assert np.array_equal(head.visibility(), draft.visibility()[: len(head) + 1, : len(head) + 1])


@settings(deadline=None, derandomize=True)
@given(trees(), st.integers(0, 3))
def test_a_child_is_the_first_with_that_token(draft: Draft, token: int) -> None:
    for node in range(-1, len(draft)):
        fitting = [c for c in range(len(draft)) if draft.parents[c] == node and draft.tokens[c] == token]
        assert draft.child(node, token) == (fitting[0] if fitting else None)


def test_a_chain_hangs_each_token_from_the_one_before() -> None:
    chain = Draft.chain([7, 8, 9], origins(3), [0.9, 0.8, 0.7])
    assert chain.parents == (-1, 0, 1)
    assert chain.depths() == [1, 2, 3]
    assert Draft.chain([], [], []) == EMPTY


@pytest.mark.parametrize(
    ("tokens", "parents", "count"),
    [((1,), (), 1), ((1,), (-1,), 0), ((1,), (0,), 1), ((1, 2), (1, -1), 2), ((1,), (-2,), 1)],
)
def test_what_is_no_tree_is_refused(tokens: tuple[int, ...], parents: tuple[int, ...], count: int) -> None:
    with pytest.raises(ValueError, match="must"):
        Draft(tokens, parents, origins(count), (1.0,) * count)


@settings(deadline=None, derandomize=True)
@given(trees(), st.data())
def test_pruning_drops_a_node_with_all_that_hangs_from_it(draft: Draft, data: st.DataObject) -> None:
    keep = data.draw(st.lists(st.booleans(), min_size=len(draft), max_size=len(draft)))

    def paths(draft: Draft, nodes: list[int]) -> list[list[int]]:
        found: dict[int, list[int]] = {-1: []}
        for node, parent in enumerate(draft.parents):
            found[node] = [*found[parent], draft.origins[node].offset]
        return [found[node] for node in nodes]

    def stands(node: int) -> bool:
        return node < 0 or (keep[node] and stands(draft.parents[node]))

    pruned = draft.pruned(keep)
    expected = [node for node in range(len(draft)) if stands(node)]
    assert pruned.tokens == tuple(draft.tokens[node] for node in expected)
    assert paths(pruned, list(range(len(pruned)))) == paths(draft, expected)


def test_the_trunk_ends_where_the_tree_branches() -> None:
    tree = Draft((1, 2, 3, 4), (-1, 0, 0, 2), origins(4), (0.9, 0.5, 0.4, 0.3))
    assert tree.trunk() == Draft.chain((1, 2), origins(2), (0.9, 0.5))
    assert EMPTY.trunk() == EMPTY
