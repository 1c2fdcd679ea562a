from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.draft import EMPTY, Origin
from refdraft.decoder.drafter import Drafter
from refdraft.decoder.odds import AcceptanceRates

Documents = Mapping[str, Sequence[Sequence[int]]]


def make(prompt: Sequence[int], documents: Documents, *, own: bool = False, vocabulary_size: int = 100) -> Drafter:
    return Drafter(
        prompt,
        documents,
        copy_prompt=own,
        copy_output=own,
        vocabulary_size=vocabulary_size,
        rates=AcceptanceRates(),
    )


def test_a_draft_is_a_chain_of_what_follows_with_falling_odds() -> None:
    draft = make([1, 2], {"references": [[8, 1, 2, 3, 4, 5, 6]]}).propose(3)
    assert draft.tokens == (3, 4, 5)
    assert draft.parents == (-1, 0, 1)
    assert draft.origins == tuple(Origin("references", 0, offset) for offset in (3, 4, 5))
    first, second, third = draft.survivals
    assert 1 > first > second > third > 0


@pytest.mark.parametrize(("text", "tokens"), [([1, 2, 3, 99, 100, 4], (3, 99)), ([1, 2, 100, 3], ())])
def test_a_span_ends_before_what_the_target_does_not_know(text: list[int], tokens: tuple[int, ...]) -> None:
    assert make([1, 2], {"references": [text]}).propose(8).tokens == tokens


def test_a_longer_match_wins_and_shared_tokens_are_credited_to_the_better_source() -> None:
    documents = {"references": [[2, 3, 4, 9, 9]], "prediction": [[0, 1, 2, 3, 4, 5]]}
    draft = make([0, 1, 2], documents).propose(8)
    assert draft.tokens == (3, 4, 5)
    assert [origin.source for origin in draft.origins] == ["references", "references", "prediction"]
    assert [origin.offset for origin in draft.origins] == [1, 2, 5]


def test_what_is_switched_off_proposes_nothing() -> None:
    repeating = [1, 2, 3, 4, 1, 2]
    assert make(repeating, {}).propose(8) == EMPTY
    for copy_prompt, copy_output, sources in ((True, False, {"prompt"}), (False, True, {"output"})):
        drafter = Drafter(
            repeating,
            {},
            copy_prompt=copy_prompt,
            copy_output=copy_output,
            vocabulary_size=100,
            rates=AcceptanceRates(),
        )
        drafter.observe([3, 4, 1, 2])
        draft = drafter.propose(8)
        assert {origin.source for origin in draft.origins} <= sources
        drafter.observe([3])
        draft = drafter.propose(8)
        assert {origin.source for origin in draft.origins} == sources


def test_a_source_that_fails_is_believed_less() -> None:
    drafter = make([1], {"references": [[1, 2] * 40]})
    before = drafter.propose(1).survivals[0]
    for _ in range(30):
        assert drafter.propose(1).tokens == (2,)
        drafter.observe([7, 1])
    assert drafter.propose(1).survivals[0] < before / 2


tokens = st.lists(st.integers(0, 5), max_size=12)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    tokens, st.lists(tokens, max_size=2), st.lists(tokens, max_size=2), st.lists(tokens, max_size=4), st.integers(1, 6)
)
def test_whatever_is_drafted_can_be_looked_up_at_its_origin(
    prompt: list[int],
    references: list[list[int]],
    predictions: list[list[int]],
    commits: list[list[int]],
    limit: int,
) -> None:
    documents = {"references": references, "prediction": predictions}
    drafter = make(prompt, documents, own=True, vocabulary_size=5)
    output: list[int] = []
    for commit in [*commits, []]:
        draft = drafter.propose(limit)
        assert len(draft) <= limit
        assert draft.parents == tuple(range(-1, len(draft) - 1))
        texts = {**documents, "prompt": [prompt], "output": [output]}
        assert [texts[source][document][offset] for source, document, offset in draft.origins] == list(draft.tokens)
        assert all(token < 5 for token in draft.tokens)
        drafter.observe(commit)
        output += commit
