from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.corpus import Corpus
from refdraft.decoder.corpus_source import CorpusSource
from refdraft.decoder.draft import Origin
from refdraft.decoder.drafter import Drafter, DrafterOptions
from refdraft.decoder.odds import SurvivalOdds
from refdraft.decoder.pool import LATE_TOKENS


def make_corpus(passages: Sequence[Sequence[int]]) -> Corpus:
    tokens = [token for passage in passages for token in passage]
    starts = np.cumsum([0, *map(len, passages)])[:-1].astype(np.int64)
    ends = np.repeat(starts + [len(passage) for passage in passages], [len(passage) for passage in passages])
    order = sorted(range(len(tokens)), key=lambda place: (tokens[place : ends[place]], place))
    return Corpus(np.array(tokens, np.uint16), np.array(order, np.uint32), starts)


PASSAGES = [[*range(10, 40)], [*range(50, 90)], [*range(100, 400)], [10, 11, 99, 98, 97]]


@pytest.fixture
def corpus() -> Corpus:
    return make_corpus(PASSAGES)


def make(corpus: Corpus, prompt: Sequence[int]) -> Drafter:
    return Drafter(
        prompt,
        {},
        output_room=500,
        classes=np.arange(1, 501, dtype=np.int32),
        odds=SurvivalOdds(),
        options=DrafterOptions(copy_prompt=False, copy_output=False),
        corpus=corpus,
    )


def test_what_was_never_retrieved_is_drafted_and_credited_to_its_passage(corpus: Corpus) -> None:
    drafter = make(corpus, [1])
    drafter.observe([60, 61])
    draft = drafter.propose(8)
    assert draft.tokens[:2] == (62, 63)
    assert draft.origins[:2] == (Origin("corpus", 1, 12), Origin("corpus", 1, 13))


def test_a_long_passage_is_followed_to_its_end(corpus: Corpus) -> None:
    drafter, position, steps = make(corpus, [1]), 102, 0
    drafter.observe([100, 101])
    while position < 399:
        draft, accepted, node = drafter.propose(16), 0, -1
        while position + accepted < 399 and (child := draft.child(node, position + accepted)) is not None:
            assert draft.origins[child] == Origin("corpus", 2, position + accepted - 100)
            node, accepted = child, accepted + 1
        drafter.observe(range(position, position + accepted + 1))
        position, steps = position + accepted + 1, steps + 1
    assert 297 / steps > 8


def test_a_single_token_lets_nothing_in(corpus: Corpus) -> None:
    assert list(CorpusSource(corpus, []).observe([60])) == []


def test_a_long_output_leaves_room_for_what_it_copies_late() -> None:
    rng = np.random.default_rng(0)
    copied_late = list(range(100, 200))
    source = CorpusSource(make_corpus([copied_late, *rng.integers(30, size=(100, 100)).tolist()]), [])
    let_in = sum(len(excerpt.ids) for _ in range(500) for excerpt in source.observe(rng.integers(30, size=3).tolist()))
    assert 0 < let_in < LATE_TOKENS * 3 / 4
    assert [(excerpt.passage, excerpt.offset) for excerpt in source.observe(copied_late[40:56])] == [(0, 40)]


tokens = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(tokens, min_size=1, max_size=4), tokens, st.lists(tokens, max_size=5))
def test_excerpts_are_true_none_comes_twice_and_all_go_on_as_the_context_does(
    passages: list[list[int]], prompt: list[int], commits: list[list[int]]
) -> None:
    source, context = CorpusSource(make_corpus(passages), prompt), list(prompt)
    seen: set[tuple[int, int]] = set()
    for commit in commits:
        context += commit
        for passage, offset, ids in source.observe(commit):
            text = passages[passage]
            assert text[offset : offset + len(ids)] == ids.tolist()
            assert (passage, offset) not in seen
            seen.add((passage, offset))
            assert any(text[place - 2 : place] == context[-2:] for place in range(max(offset, 2), offset + len(ids)))
