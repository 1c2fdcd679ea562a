from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.index_builder import suffixes
from refdraft.index_builder.suffixes import write_suffixes
from refdraft.retriever.manifest import SUFFIX_DEPTH, suffix_dtype

Passages = list[list[int]]
Repeats = st.tuples(st.lists(st.integers(0, 3), max_size=9), st.integers(1, 9)).map(lambda drawn: drawn[0] * drawn[1])


def by_definition(passages: Passages) -> list[int]:
    keys: list[tuple[list[int], bool, int]] = []
    for passage in passages:
        for offset in range(len(passage)):
            rest = passage[offset:]
            keys.append((rest[:SUFFIX_DEPTH], len(rest) > SUFFIX_DEPTH, len(keys)))
    return [place for _, _, place in sorted(keys)]


def written(passages: Passages, path: Path, dtype: type[np.unsignedinteger[Any]]) -> list[int]:
    tokens = np.array([token for passage in passages for token in passage], dtype=dtype)
    starts = np.cumsum([0, *map(len, passages)])[:-1].astype(np.int64)
    advanced: list[int] = []
    write_suffixes(tokens, starts, path, advanced.append)
    assert sum(advanced) == len(tokens)
    places: list[int] = np.fromfile(path, dtype=suffix_dtype(len(tokens))).tolist()
    return places


@settings(max_examples=200, deadline=None)
@given(
    st.lists(Repeats, min_size=1, max_size=6),
    st.sampled_from([np.uint16, np.uint32]),
    st.sampled_from([0, 1 << 15, (1 << 16) - 4]),
)
def test_places_are_in_the_order_that_the_format_says(
    tmp_path_factory: pytest.TempPathFactory,
    passages: Passages,
    dtype: type[np.unsignedinteger[Any]],
    base: int,
) -> None:
    raised = [[token + base for token in passage] for passage in passages]
    assert written(raised, tmp_path_factory.getbasetemp() / "suffixes.bin", dtype) == by_definition(passages)


def test_slices_of_the_order_fit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    passages = [rng.geometric(0.02, size).tolist() for size in (500, 0, 700, 300)]
    monkeypatch.setattr(suffixes, "_SMALLEST_SLICE", 1)
    monkeypatch.setattr(suffixes, "_SCAN", 100)
    assert written(passages, tmp_path / "suffixes.bin", np.uint32) == by_definition(passages)


def test_places_beyond_32_bits_have_room() -> None:
    assert suffix_dtype(1 << 32).itemsize == 4
    assert suffix_dtype((1 << 32) + 1).itemsize == 8
