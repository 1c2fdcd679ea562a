from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from refdraft.decoder.corpus import LONGEST, Corpus

Passages = list[list[int]]


def flat(passages: Passages) -> list[int]:
    return [token for passage in passages for token in passage]


def first_tokens(passages: Passages) -> NDArray[np.int64]:
    return np.cumsum([0, *map(len, passages)])[:-1].astype(np.int64)


def corpus_of(passages: Passages, dtype: type[np.unsignedinteger[Any]] = np.uint16) -> Corpus:
    """Sorted by the definition, without the index builder."""
    keys: list[tuple[list[int], bool, int]] = []
    for passage in passages:
        for offset in range(len(passage)):
            rest = passage[offset:]
            keys.append((rest[:LONGEST], len(rest) > LONGEST, len(keys)))
    suffixes = np.array([place for _, _, place in sorted(keys)], dtype=np.uint32)
    return Corpus(np.array(flat(passages), dtype=dtype), suffixes, first_tokens(passages))


def matches(passages: Passages, context: list[int]) -> dict[int, int]:
    """By position, how many tokens before it equal the end of the context: the whole text, scanned."""
    found: dict[int, int] = {}
    for start, passage in zip(first_tokens(passages).tolist(), passages, strict=True):
        for offset in range(1, len(passage)):
            length = 0
            while length < min(offset, len(context), LONGEST) and passage[offset - 1 - length] == context[-1 - length]:
                length += 1
            if length:
                found[start + offset] = length
    return found


def found(corpus: Corpus, context: list[int], most: int) -> list[tuple[int, int]]:
    positions, lengths = corpus.find(np.array(context, dtype=np.int32), most)
    return list(zip(positions.tolist(), lengths.tolist(), strict=True))


# Few token ids and passages repeated whole make for long matches, and for many of one length.
Repeats = st.tuples(st.lists(st.integers(0, 2), max_size=8), st.integers(1, 6)).map(lambda drawn: drawn[0] * drawn[1])


@settings(max_examples=400, deadline=None)
@given(
    st.data(), st.lists(Repeats, min_size=1, max_size=6), st.integers(1, 12), st.sampled_from([np.uint16, np.uint32])
)
def test_the_longest_matches_of_a_scan_are_found(
    data: st.DataObject, passages: Passages, most: int, dtype: type[np.unsignedinteger[Any]]
) -> None:
    context = data.draw(st.sampled_from([*passages, flat(passages)])) + data.draw(
        st.lists(st.integers(0, 3), max_size=3)
    )
    expected = matches(passages, context)
    result = found(corpus_of(passages, dtype), context, most)
    assert [length for _, length in result] == sorted(expected.values(), reverse=True)[:most]
    assert len({position for position, _ in result}) == len(result)
    assert all(expected[position] == length for position, length in result)


def test_a_match_stays_within_its_passage() -> None:
    corpus = corpus_of([[1, 2], [], [3, 1, 2, 3], [3]])
    assert found(corpus, [1, 2, 3], 9) == [(3, 1)], "1, 2, 3 stands only across a border, or with nothing behind it"
    assert found(corpus, [3, 1, 2], 9) == [(5, 3)], "the end of the first passage has nothing to copy"


def test_matches_longer_than_the_order_is_deep_count_as_equals() -> None:
    long = list(range(40))
    corpus = corpus_of([long, [99, *long[20:]], long[:36]])
    assert sorted(found(corpus, long[:36], 9)) == [(36, LONGEST), (57, LONGEST)]


def test_a_context_of_nothing_known_has_no_match() -> None:
    corpus = corpus_of([[1, 2, 3]])
    for context in ([], [9], [-1], [2**31 - 1]):
        assert found(corpus, context, 4) == []
    assert found(corpus_of([[]]), [1], 4) == []


def test_of_many_occurrences_those_taken_lead_to_different_places() -> None:
    passages = [[7, following] for following in range(1000)] + [[5, 7, 2000]]
    corpus = corpus_of(passages)
    result = found(corpus, [5, 7], 11)
    assert result[0] == (2002, 2), "the longer match first"
    copied = [int(corpus.copy(position, 1)[0]) for position, _ in result[1:]]
    assert all(60 < after - before < 140 for before, after in pairwise(copied)), copied
    assert copied[0] < 140
    assert copied[-1] > 800


def test_positions_are_known_by_passage_and_copied_to_its_end() -> None:
    corpus = corpus_of([[1, 2, 3], [], [4, 5], []])
    assert [corpus.passage(position) for position in range(5)] == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)]
    copied = corpus.copy(1, 8)
    assert copied.tolist() == [2, 3]
    assert copied.dtype == np.int32
    assert corpus.copy(3, 1).tolist() == [4]
    for outside in (-1, 5):
        with pytest.raises(IndexError, match="only 5 tokens"):
            corpus.passage(outside)
        with pytest.raises(IndexError):
            corpus.copy(outside, 1)


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40), min_size=30, max_size=30), st.integers(1, 40))
@settings(deadline=None)
def test_damaged_suffixes_never_give_a_match_that_is_none(suffixes: list[int], most: int) -> None:
    passages = [[1, 2, 3, 1, 2] * 3, [2, 3, 1] * 5]
    tokens = np.array(flat(passages), dtype=np.uint16)
    expected = matches(passages, [1, 2, 3, 1])
    for damaged in (np.array(suffixes, dtype=np.uint64), np.array(suffixes, dtype=np.uint64).astype(np.uint32)):
        result = found(Corpus(tokens, damaged, first_tokens(passages)), [1, 2, 3, 1], most)
        assert all(expected[position] == length for position, length in result)
        assert len(result) <= most


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    tokens, suffixes = np.zeros(3, dtype=np.uint16), np.arange(3, dtype=np.uint32)
    for starts in ([], [1], [0, 2, 1], [0, 4], [0, -1]):
        with pytest.raises(ValueError, match="belong together"):
            Corpus(tokens, suffixes, np.array(starts, dtype=np.int64))
    with pytest.raises(ValueError, match="belong together"):
        Corpus(tokens, suffixes[:2], np.zeros(1, dtype=np.int64))
