import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.draft import EMPTY, Draft, Origin
from refdraft.decoder.drafter import Drafter, DrafterOptions
from refdraft.decoder.odds import SurvivalOdds

Documents = Mapping[str, Sequence[Sequence[int]]]

VOCABULARY = 100
DOCUMENTS_ONLY = DrafterOptions(copy_prompt=False, copy_output=False, follow_target=False)


def make(
    prompt: Sequence[int],
    documents: Documents,
    *,
    options: DrafterOptions = DOCUMENTS_ONLY,
    vocabulary: int = VOCABULARY,
    classes: Mapping[int, int] | None = None,
    branching: bool = True,
    odds: SurvivalOdds | None = None,
) -> Drafter:
    numbers = np.arange(1, vocabulary + 1, dtype=np.int32)
    for token, number in (classes or {}).items():
        numbers[token] = number
    return Drafter(
        prompt,
        documents,
        output_room=2000,
        classes=numbers,
        odds=odds or SurvivalOdds(),
        options=options,
        branching=branching,
    )


def begun(written: Sequence[int], references: Sequence[Sequence[int]], **settings: Any) -> Drafter:
    """A drafter whose output begins with `written`, behind a prompt that has nothing to do with it."""
    drafter = make([98], {"references": references}, **settings)
    drafter.observe(written)
    return drafter


def paths(draft: Draft) -> dict[tuple[int, ...], int]:
    """Every path from the root, and the node that it ends at."""
    found: dict[tuple[int, ...], int] = {}
    prefix: dict[int, tuple[int, ...]] = {-1: ()}
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        prefix[node] = (*prefix[parent], token)
        found[prefix[node]] = node
    return found


def survival(draft: Draft, *path: int) -> float:
    return draft.survivals[paths(draft)[path]]


@pytest.mark.parametrize("branching", [True, False])
def test_what_follows_a_match_is_drafted_with_falling_odds(branching: bool) -> None:
    draft = begun([1, 2], [[8, 1, 2, 3, 4, 5, 6]], branching=branching).propose(8)
    found = paths(draft)
    assert {(3,), (3, 4), (3, 4, 5), (3, 4, 5, 6)} <= found.keys()
    assert [draft.origins[found[(3, 4, 5, 6)[:n]]] for n in (1, 2, 3)] == [
        Origin("references", 0, offset) for offset in (3, 4, 5)
    ]
    chances = [survival(draft, *(3, 4, 5, 6)[:n]) for n in (1, 2, 3, 4)]
    assert 1 > chances[0] > chances[1] > chances[2] > chances[3] > 0


@pytest.mark.parametrize("text", [[1, 2, 3, 99, 100, 4], [1, 2, 3, 99, -5, 4]])
def test_a_span_ends_before_what_the_target_does_not_know(text: list[int]) -> None:
    found = paths(make([1, 2], {"references": [text]}).propose(8))
    assert (3, 99) in found
    assert all(100 not in path and -5 not in path for path in found)
    assert (3, 99, 4) not in found


def test_a_longer_match_is_likelier() -> None:
    draft = begun([6, 5, 1, 2], [[9, 2, 4, 4], [6, 5, 1, 2, 3, 3]]).propose(8)
    assert survival(draft, 3) > survival(draft, 4)


def test_the_same_continuation_in_two_places_is_one_branch_and_likelier() -> None:
    once = begun([1, 2], [[1, 2, 3, 4], [1, 2, 5, 6]]).propose(16)
    twice = begun([1, 2], [[1, 2, 3, 4], [1, 2, 5, 6], [7, 1, 2, 5, 6]]).propose(16)
    assert len(set(paths(twice))) == len(twice), "no path twice"
    assert survival(twice, 5) > survival(once, 5)
    assert survival(twice, 3) < survival(once, 3)


def test_of_equal_texts_the_first_ranked_is_credited_and_a_copy_stays_where_it_began() -> None:
    draft = begun([1, 2], [[1, 2, 3, 4], [1, 2, 3, 4]]).propose(1)
    assert draft.origins == (Origin("references", 0, 2),)
    drafter = begun([7, 8, 6, 1, 2], [[9, 1, 2, 3, 4, 5], [7, 8, 6, 1, 2, 3, 4, 5]])
    assert drafter.propose(1).origins == (Origin("references", 1, 5),)


def test_a_weight_makes_a_source_likelier() -> None:
    plain, weighted = (
        make([98], {"references": [[1, 2, 3]], "prediction": [[1, 2, 4]]}, options=DrafterOptions(weights=weights))
        for weights in ({}, {"prediction": 8.0})
    )
    plain.observe([1, 2])
    weighted.observe([1, 2])
    assert survival(weighted.propose(8), 4) > survival(plain.propose(8), 4)
    assert survival(weighted.propose(8), 3) < survival(plain.propose(8), 3)


TEXT = list(range(10, 60))


@pytest.mark.parametrize(
    ("written", "resumed"),
    [
        pytest.param([*TEXT[:20], 99], TEXT[21:24], id="substituted"),
        pytest.param([*TEXT[:20], 99], TEXT[20:23], id="inserted"),
        pytest.param([*TEXT[:20], 99, 98], TEXT[22:25], id="two substituted"),
        pytest.param([*TEXT[:20], TEXT[22]], TEXT[23:26], id="deleted"),
        pytest.param([*TEXT[:20], 99, 98, 97], TEXT[20:22], id="three inserted"),
    ],
)
def test_right_behind_an_edit_the_copy_is_resumed(written: list[int], resumed: list[int]) -> None:
    """No token before the place need match: the cursor remembers it."""
    drafter = make([1], {"prediction": [TEXT]})
    drafter.observe(written)
    assert tuple(resumed[:1]) in paths(drafter.propose(32))
    assert tuple(resumed[:2]) in paths(drafter.propose(32))


def test_a_long_correction_is_followed_to_its_end_over_reordered_paragraphs() -> None:
    rng = np.random.default_rng(0)
    source = rng.integers(1, 90, 2000).tolist()
    corrected = [token if rng.random() > 0.05 else int(rng.integers(90, 99)) for token in source]
    corrected = corrected[1000:] + corrected[:1000]
    drafter = make([95], {"prediction": [source]})
    position = steps = 0
    while position < len(corrected) - 1:
        draft, accepted, node = drafter.propose(16), 0, -1
        while (child := draft.child(node, corrected[position + accepted])) is not None:
            accepted, node = accepted + 1, child
            if position + accepted == len(corrected):
                break
        drafter.observe(corrected[position : position + accepted + 1])
        position, steps = position + accepted + 1, steps + 1
    assert len(corrected) / steps > 5


def test_a_sentence_end_leads_to_the_sentences_of_the_references() -> None:
    """70 and 71 end sentences; the output ended one in another way than any reference does."""
    ends = {70: 0, 71: 0}
    drafter = make([1], {"references": [[20, 21, 22, 70, 30, 31, 32]]}, classes=ends)
    drafter.observe([5, 71])
    found = paths(drafter.propose(16))
    assert {(20,), (30,)} <= found.keys()
    assert (20, 21) in found


def test_a_span_may_begin_behind_a_variant_of_the_last_token() -> None:
    drafter = make([1], {"references": [[20, 21, 22, 23]]}, classes={20: 7, 60: 7})
    drafter.observe([60])
    assert (21, 22) in paths(drafter.propose(16))
    plain = make([1], {"references": [[20, 21, 22, 23]]})
    plain.observe([60])
    assert (21, 22) not in paths(plain.propose(16))


def test_what_is_switched_off_proposes_nothing() -> None:
    repeating = [1, 2, 3, 4, 1, 2]
    assert make(repeating, {}).propose(8) == EMPTY
    for prompt, output, sources in ((True, False, {"prompt"}), (False, True, {"output"})):
        drafter = make(repeating, {}, options=DrafterOptions(copy_prompt=prompt, copy_output=output))
        drafter.observe([3, 4, 1, 2])
        drafter.observe([3, 4, 1, 2])
        assert {origin.source for origin in drafter.propose(8).origins} == sources


def test_a_source_that_fails_is_believed_less() -> None:
    drafter = begun([1], [[1, 2] * 40])
    before = survival(drafter.propose(1), 2)
    for _ in range(60):
        drafter.observe([7, 1])
    draft = drafter.propose(8)
    assert (2,) not in paths(draft) or survival(draft, 2) < before / 2


def test_requests_teach_one_another() -> None:
    odds = SurvivalOdds()
    before = survival(begun([1, 2], [[1, 2, 3, 4]], odds=odds).propose(1), 3)
    for _ in range(60):
        begun([1, 2], [[1, 2, 3, 4]], odds=odds).observe([50])
    assert survival(begun([1, 2], [[1, 2, 3, 4]], odds=odds).propose(1), 3) < before / 2


def test_what_the_target_nearly_wrote_is_drafted_when_the_context_comes_again() -> None:
    logits = np.full((3, VOCABULARY), -20.0, np.float32)
    logits[0, [40, 6]] = 5.0, 4.5  # behind the prompt's (30, 31) the target writes 40, and nearly wrote 6
    logits[1, 30] = logits[2, 31] = 5.0
    drafter = make([30, 31], {}, options=DrafterOptions(copy_prompt=False, copy_output=False))
    drafter.observe([40, 30, 31], logits)
    draft = drafter.propose(16)
    assert {(40,), (6,)} <= paths(draft).keys()
    assert {origin.source for origin in draft.origins} == {"target"}
    assert survival(draft, 40) > survival(draft, 6)
    deaf = make([30, 31], {})
    deaf.observe([40, 30, 31], logits)
    assert deaf.propose(16) == EMPTY


def test_a_document_that_comes_later_is_drafted_from() -> None:
    drafter = make([1], {})
    drafter.observe([20, 21])
    assert drafter.propose(8) == EMPTY
    assert drafter.add_document("corpus", [19, 20, 21, 22, 23, 100], 7)
    draft = drafter.propose(8)
    assert draft.origins[paths(draft)[22, 23]] == Origin("corpus", 7, 4)
    assert not drafter.add_document("corpus", [5] * 40_000, 8), "the room is bounded"
    assert (22, 23) in paths(drafter.propose(8))


tokens = st.lists(st.integers(0, 5), max_size=12)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    tokens, st.lists(tokens, max_size=2), st.lists(tokens, max_size=2), st.lists(tokens, max_size=4), st.integers(1, 12)
)
def test_whatever_is_drafted_can_be_looked_up_at_its_origin(
    prompt: list[int],
    references: list[list[int]],
    predictions: list[list[int]],
    commits: list[list[int]],
    limit: int,
) -> None:
    documents = {"references": references, "prediction": predictions}
    drafter = make(prompt, documents, options=DrafterOptions(), vocabulary=5)
    output: list[int] = []
    for commit in [*commits, []]:
        draft = drafter.propose(limit)
        assert len(draft) <= limit
        assert len(paths(draft)) == len(draft), "no path twice"
        texts = {**documents, "prompt": [prompt], "output": [output]}
        assert [texts[source][document][offset] for source, document, offset in draft.origins] == list(draft.tokens)
        assert all(token < 5 for token in draft.tokens)
        assert list(draft.survivals) == sorted(draft.survivals, reverse=True), "likeliest first"
        assert all(0 <= chance <= 1 for chance in draft.survivals)
        roots = [chance for chance, parent in zip(draft.survivals, draft.parents, strict=True) if parent == -1]
        assert sum(roots) <= 1 + 1e-9
        assert drafter.propose(max(1, limit // 2)) == draft.head(max(1, limit // 2)), "the best of any number"
        drafter.observe(commit)
        output += commit


@settings(deadline=None, max_examples=100, derandomize=True)
@given(tokens, st.lists(tokens, max_size=3), tokens)
def test_every_continuation_of_a_match_is_a_candidate(
    prompt: list[int], references: list[list[int]], output: list[int]
) -> None:
    """The specification: behind every occurrence of the context's last token, whatever stands there may come."""
    drafter = make(prompt, {"references": references}, options=DrafterOptions(follow_target=False))
    drafter.observe(output)
    context = prompt + output
    expected = {
        after
        for text in [*references, context]
        for token, after in itertools.pairwise(text)
        if context and token == context[-1]
    }
    roots = {path[0] for path in paths(drafter.propose(64)) if len(path) == 1}
    assert expected <= roots


WALK = """
import json, sys
import numpy as np
from tests.decoder.test_drafter import make
from refdraft.decoder.drafter import DrafterOptions

rng = np.random.default_rng(3)
references = [rng.integers(0, 20, 40).tolist() for _ in range(3)]
drafter = make(rng.integers(0, 20, 30).tolist(), {"references": references}, options=DrafterOptions(), classes={3: 0})
drafts = []
for step in range(12):
    draft = drafter.propose(12)
    drafts.append([draft.tokens, draft.parents, [round(chance, 6) for chance in draft.survivals]])
    committed = references[step % 3][step : step + 3] + [int(rng.integers(0, 20))]
    drafter.observe(committed, rng.normal(0, 3, (4, 100)).astype(np.float32))
    drafter.add_document("corpus", rng.integers(0, 20, 9).tolist(), step)
print(json.dumps(drafts))
"""


def test_the_compiled_drafter_equals_the_plain_one() -> None:
    """The same functions run as plain Python are the specification."""
    compiled, plain = (
        subprocess.run(
            [sys.executable, "-c", WALK],
            env=os.environ | {"NUMBA_DISABLE_JIT": value},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for value in ("0", "1")
    )
    assert json.loads(compiled) == json.loads(plain)
    assert sum(len(tokens) for tokens, _, _ in json.loads(compiled)) > 50
