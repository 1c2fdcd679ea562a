import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.batch import Batch, Row
from refdraft.decoder.draft import Draft, Origin

LIMIT = 24  # tokens of a context
WIDTH = 8


@st.composite
def rows(draw: st.DrawFn) -> Row:
    length = draw(st.integers(0, LIMIT - 1))
    if draw(st.booleans()):
        return Row(length)
    size = draw(st.integers(0, min(WIDTH - 1, LIMIT - 1 - length)))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    tokens = tuple(range(100, 100 + size))
    return Row(
        length, draw(st.integers(0, 99)), Draft(tokens, parents, (Origin("output", 0, 0),) * size, (1.0,) * size)
    )


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.lists(rows(), min_size=1, max_size=4))
def test_every_token_attends_to_its_own_past_and_nothing_else(rows: list[Row]) -> None:
    batch = Batch.decode(2, rows, width=WIDTH, cells=LIMIT + WIDTH, last_position=LIMIT - 1)
    assert batch.first_slot == 2
    assert batch.positions.max() < LIMIT
    for index, row in enumerate(rows):
        assert batch.starts[index] == row.length
        past = set(range(row.length))
        seen = [set(np.flatnonzero(line).tolist()) for line in batch.mask[index]]
        assert all(len(cells) > len(past) for cells in seen)  # nobody's softmax is empty, padding included
        if row.token is None:
            continue
        assert batch.tokens[index, 0] == row.token
        assert seen[0] == past | {row.length}
        assert batch.positions[index, 0] == row.length
        for node, parent in enumerate(row.draft.parents, start=1):
            assert batch.tokens[index, node] == row.draft.tokens[node - 1]
            assert seen[node] == seen[parent + 1] | {row.length + node}
            assert batch.positions[index, node] == batch.positions[index, parent + 1] + 1


def test_prefill_is_causal_and_padding_looks_at_nothing_unwritten() -> None:
    batch = Batch.prefill(1, 4, [7, 8], width=4, cells=12, last_position=6)
    assert batch.tokens.tolist() == [[7, 8, 0, 0]]
    assert batch.positions.tolist() == [[4, 5, 6, 6]]
    assert batch.starts.tolist() == [4]
    assert [np.flatnonzero(line).tolist() for line in batch.mask[0]] == [list(range(n)) for n in (5, 6, 7, 8)]
