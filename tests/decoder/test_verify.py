from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.draft import Draft, Origin
from refdraft.decoder.verify import verify


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(0, 9))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    tokens = tuple(draw(st.integers(0, 2)) for _ in range(size))
    return Draft(tokens, parents, tuple(Origin("output", 0, node) for node in range(size)), (1.0,) * size)


def paths(draft: Draft) -> set[tuple[int, ...]]:
    """The token strings that the tree holds, the empty one included."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        found.append((*found[parent], token) if parent >= 0 else (token,))
    return {(), *found}


@settings(deadline=None, max_examples=300, derandomize=True)
@given(trees(), st.lists(st.integers(0, 2), min_size=10, max_size=10))
def test_the_walk_commits_the_targets_own_tokens_and_one_more(draft: Draft, truth: list[int]) -> None:
    """No duplicate siblings: with them a draft may hold a longer string than the one child that is followed."""
    if len({(p, t) for p, t in zip(draft.parents, draft.tokens, strict=True)}) < len(draft):
        return
    columns: list[int] = []

    def choose(column: int) -> int:
        columns.append(column)
        return truth[len(columns) - 1]

    steps = list(verify(draft, choose))
    committed = [token for token, _ in steps]
    assert committed == truth[: len(committed)]
    assert tuple(committed[:-1]) in paths(draft)
    assert tuple(committed) not in paths(draft)
    nodes = [node for _, node in steps]
    assert nodes[-1] is None
    assert columns == [0, *(node + 1 for node in nodes[:-1] if node is not None)]


@settings(deadline=None, max_examples=100, derandomize=True)
@given(trees(), st.lists(st.integers(0, 2), min_size=10, max_size=10))
def test_twins_among_siblings_change_the_speed_only(draft: Draft, truth: list[int]) -> None:
    count = 0

    def choose(column: int) -> int:
        nonlocal count
        count += 1
        return truth[count - 1]

    committed = [token for token, _ in verify(draft, choose)]
    assert committed == truth[: len(committed)]


def test_a_caller_that_stops_asks_the_target_no_further() -> None:
    asked: list[int] = []
    draft = Draft.chain([1, 1, 1], [Origin("output", 0, 0)] * 3, [1.0] * 3)

    def choose(column: int) -> int:
        asked.append(column)
        return 1

    for _, node in verify(draft, choose):
        if node == 1:
            break
    assert asked == [0, 1]
