"""The peers' rules, on cases whose answer is plain from the rule."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from refdraft.decoder.peers.aggressive import AggressiveDecoding
from refdraft.decoder.peers.llma import Llma
from refdraft.decoder.peers.lookup import PromptLookup
from refdraft.decoder.peers.oracle import CopyOracle
from refdraft.decoder.peers.peer import Peer
from refdraft.decoder.peers.rest import Rest
from refdraft.decoder.peers.suffix_decoding import SuffixDecoding
from refdraft.decoder.peers.text import Text
from refdraft.decoder.peers.tree import Tree, grow
from refdraft.decoder.replay import Trace, replay
from tests.decoder.test_replay import COPY, REFERENCE, traces

PEERS: dict[str, Callable[..., Peer]] = {
    "prompt_lookup": PromptLookup,
    "transformers": partial(PromptLookup, longest=2),
    "vllm": partial(PromptLookup, longest=5, shortest=5, tokens=None),
    "llma": Llma,
    "rest": Rest,
    "suffix_decoding": partial(SuffixDecoding, alpha=4),
    "aggressive": AggressiveDecoding,
    "oracle": CopyOracle,
}


def paths(tree: Tree) -> list[list[int]]:
    """The path to each node, in the order of the nodes."""
    known: dict[int, list[int]] = {-1: []}
    for (parent, token), node in tree.nodes.items():
        known[node] = [*known[parent], token]
    return [known[node] for node in range(len(tree))]


def drafted(
    make: Callable[..., Peer],
    output: Sequence[int],
    *,
    prompt: Sequence[int] = (),
    references: Sequence[Sequence[int]] = (),
    budget: int = 64,
) -> list[list[int]]:
    """The paths of what a peer drafts behind an output."""
    peer = make(Trace(prompt, references, output), budget=budget)
    peer.observe(output)
    return paths(peer.draft([]))


def prefixes(tokens: Sequence[int]) -> list[list[int]]:
    return [list(tokens[: size + 1]) for size in range(len(tokens))]


# Prompt lookup


def test_prompt_lookup_takes_the_first_occurrence_of_the_longest_n_gram() -> None:
    prompt = [3, 60, 2, 3, 61, 1, 2, 3, 62, 1, 2, 3, 63]
    draft = drafted(PromptLookup, [1, 2, 3], prompt=prompt)
    assert draft[-1] == [62, 1, 2, 3, 63, 1, 2, 3]  # up to the end of the context
    assert drafted(PEERS["transformers"], [1, 2, 3], prompt=prompt)[-1][:2] == [61, 1]
    assert drafted(PromptLookup, [9, 2, 3], prompt=prompt)[-1][:2] == [61, 1]  # two tokens
    assert drafted(PromptLookup, [9, 9, 3], prompt=prompt)[-1][:2] == [60, 2]  # one
    assert drafted(PromptLookup, [8], prompt=prompt) == []


def test_prompt_lookup_drafts_ten_tokens() -> None:
    assert drafted(PromptLookup, [0], prompt=range(20)) == prefixes(range(1, 11))
    assert drafted(PromptLookup, [0], prompt=range(20), budget=3) == prefixes(range(1, 4))


def test_vllm_wants_five_tokens_and_drafts_the_budget() -> None:
    assert drafted(PEERS["vllm"], [1, 2, 3, 4], prompt=range(30)) == []
    assert drafted(PEERS["vllm"], [1, 2, 3, 4, 5], prompt=range(40), budget=30) == prefixes(range(6, 36))


def test_vllm_takes_the_earliest_match() -> None:
    gram = [1, 2, 3, 4, 5]
    assert drafted(PEERS["vllm"], gram, prompt=[*gram, 60, *gram, 61], budget=1) == [[60]]


def test_lookup_sees_references_and_prompt_in_a_row() -> None:
    assert drafted(PromptLookup, [2], references=[[1, 2], [3, 4]], prompt=[5], budget=4) == prefixes([3, 4, 5, 2])


# LLMA


def test_llma_copies_to_the_end_of_the_first_document_with_the_longest_match() -> None:
    references = [[7, 3, 60], [1, 2, 3, 61, 62], [1, 2, 3, 63]]
    assert drafted(Llma, [1, 2, 3], references=references) == prefixes([61, 62])
    assert drafted(Llma, [3], references=references) == prefixes([60])


def test_llma_matches_five_tokens_at_most() -> None:
    references = [[2, 3, 4, 5, 6, 60], [1, 2, 3, 4, 5, 6, 61]]
    assert drafted(Llma, [1, 2, 3, 4, 5, 6], references=references) == [[60]]


def test_llma_feeds_twenty_tokens_a_step() -> None:
    assert drafted(Llma, [0], references=[range(40)]) == prefixes(range(1, 20))


def test_llma_copies_from_references_alone() -> None:
    assert drafted(Llma, [1], references=[[2, 1]], prompt=[1, 60]) == []  # not from the prompt, nor over a border
    assert drafted(Llma, [5, 60, 5], references=[[2]]) == []  # nor from the output
    assert drafted(Llma, [1], prompt=[1, 60]) == [[60]]  # the prompt stands in where there is no reference


# REST


def test_rest_drafts_what_most_hits_share() -> None:
    prompt = [1, 2, 60, 70, 1, 2, 60, 71, 1, 2, 60, 70, 1, 2, 61]
    assert drafted(Rest, [9, 1, 2], prompt=prompt, budget=3) == [[60], [60, 70], [60, 70, 1]]
    assert [60, 71] in drafted(Rest, [9, 1, 2], prompt=prompt)
    assert [61] in drafted(Rest, [9, 1, 2], prompt=prompt)


def test_rest_wants_two_tokens_and_takes_the_longest_suffix() -> None:
    assert drafted(Rest, [1], prompt=[1, 60]) == []
    assert drafted(Rest, [1, 2, 3], prompt=[2, 3, 60, 2, 3, 60, 1, 2, 3, 61], budget=1) == [[61]]


def test_rest_reads_ten_tokens_behind_a_hit() -> None:
    assert drafted(Rest, [0, 1], prompt=range(30)) == prefixes(range(2, 12))


# SuffixDecoding


def test_suffix_decoding_drafts_as_much_as_it_matched() -> None:
    assert drafted(SuffixDecoding, [4, 5, 6], prompt=range(30)) == prefixes([7, 8, 9])
    assert drafted(partial(SuffixDecoding, alpha=4), [4, 5, 6], prompt=range(30)) == prefixes(range(7, 19))


def test_suffix_decoding_takes_likelier_nodes_first() -> None:
    prompt = [1, 2, 60, 1, 2, 60, 1, 2, 61]
    assert drafted(partial(SuffixDecoding, alpha=4), [1, 2], prompt=prompt, budget=1) == [[60]]
    draft = drafted(partial(SuffixDecoding, alpha=4), [1, 2], prompt=prompt)
    assert draft.index([60]) < draft.index([61])


def test_suffix_decoding_weighs_the_lengths_of_suffixes() -> None:
    # Behind "1 2" stands 70 once in two (the context's end counts), behind "2" stands 60 nine times in eleven.
    prompt = [1, 2, 70, *[9, 2, 60] * 9]
    assert drafted(SuffixDecoding, [1, 2], prompt=prompt, budget=1) == [[60]]


def test_suffix_decoding_leaves_out_the_unlikely() -> None:
    prompt = list(chain.from_iterable((1, 60 + number) for number in range(10)))
    assert drafted(partial(SuffixDecoding, alpha=4), [1], prompt=prompt) == []  # each once in eleven
    assert drafted(SuffixDecoding, [1], prompt=prompt[:-2]) == [[60]]  # once in ten


# Aggressive decoding


def test_aggressive_decoding_holds_the_output_to_be_the_source() -> None:
    assert drafted(AggressiveDecoding, [], references=[[1, 2]], prompt=[3]) == prefixes([1, 2, 3])
    assert drafted(AggressiveDecoding, [1], prompt=[1, 2, 3, 4]) == prefixes([2, 3, 4])
    assert drafted(AggressiveDecoding, [1], prompt=[1, 2, 1, 3], budget=2) == prefixes([2, 1])


def test_aggressive_decoding_is_plain_behind_an_edit_until_a_suffix_is_unique() -> None:
    source = [1, 2, 3, 5, 2, 4]
    assert drafted(AggressiveDecoding, [1, 9], prompt=source) == []
    assert drafted(AggressiveDecoding, [1, 9, 2], prompt=source) == []  # stands twice
    assert drafted(AggressiveDecoding, [1, 9, 3], prompt=source) == prefixes([5, 2, 4])
    assert drafted(AggressiveDecoding, [1, 9, 5, 2], prompt=source) == [[4]]
    assert drafted(AggressiveDecoding, [7, 5, 2], prompt=[2, 3, 5, 2, 4]) == [[4]]  # "2" stands twice, "5 2" once


def test_aggressive_decoding_stops_where_the_source_ends() -> None:
    assert drafted(AggressiveDecoding, [1, 2], prompt=[1, 2]) == []
    assert drafted(AggressiveDecoding, [1, 2, 1], prompt=[1, 2]) == [[2]]


# The copy-oracle


@pytest.mark.parametrize(("trace", "budget", "drafts"), [(COPY, 16, [4]), (COPY, 2, [2, 1]), (REFERENCE, 16, [5])])
def test_the_oracle_drafts_the_longest_copy(trace: Trace, budget: int, drafts: list[int]) -> None:
    (result,) = replay([trace], lambda trace: CopyOracle(trace, budget=budget))
    assert (result.steps, result.drafted, result.accepted) == (len(drafts), sum(drafts), sum(drafts))


def test_the_oracle_copies_up_to_its_span() -> None:
    trace = Trace(range(60), [], range(60))
    assert CopyOracle(trace, budget=64).step(1) == (16, 16)
    assert CopyOracle(trace, budget=8).step(1) == (8, 8)
    assert CopyOracle(trace, budget=64, span=None).step(1) == (59, 59)


# What holds of all


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.sampled_from(sorted(PEERS)), traces, st.integers(0, 12))
def test_budgets_are_kept_and_no_step_commits_more_than_the_output(name: str, trace: Trace, budget: int) -> None:
    peer, position = PEERS[name](trace, budget=budget), 1
    while position < len(trace.output):
        nodes, accepted = peer.step(position)
        assert 0 <= accepted <= nodes <= budget
        assert accepted <= len(trace.output) - position
        position += accepted + 1


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.sampled_from(["prompt_lookup", "transformers", "vllm", "llma", "aggressive"]), traces, st.integers(0, 12))
@example("prompt_lookup", Trace([6, 7, 8, 3, 1, 9, 0, 5], [], [6, 7, 8, 1, 9, 0, 5, 6, 7, 8, 2]), 12)
def test_no_copier_of_single_spans_needs_fewer_steps_than_the_oracle(name: str, trace: Trace, budget: int) -> None:
    (copier,) = replay([trace], lambda trace: PEERS[name](trace, budget=budget))
    (oracle,) = replay([trace], lambda trace: CopyOracle(trace, budget=budget, span=None))
    assert oracle.steps <= copier.steps
    assert oracle.accepted == oracle.drafted


def lookup(context: Sequence[int], limit: int) -> list[int]:
    for size in (3, 2, 1):
        for at in range(len(context) - size):
            if list(context[at : at + size]) == list(context[-size:]):
                return list(context[at + size : at + size + limit])
    return []


@settings(deadline=None, max_examples=200, derandomize=True)
@given(traces.filter(lambda trace: len(trace.output) > 0), st.integers(0, 12))
def test_prompt_lookup_drafts_what_a_search_by_eye_finds(trace: Trace, budget: int) -> None:
    found = lookup([*chain(*trace.references), *trace.prompt, *trace.output], min(10, budget))
    draft = drafted(PromptLookup, trace.output, prompt=trace.prompt, references=trace.references, budget=budget)
    assert draft == prefixes(found)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_transformers_rule_is_what_transformers_does(context: list[int]) -> None:
    candidates, _ = PromptLookupCandidateGenerator(max_length=1000).get_candidates(torch.LongTensor([context]))
    draft = drafted(PEERS["transformers"], context[-1:], prompt=context[:-1])
    assert draft == prefixes(candidates[0, len(context) :].tolist())


# The parts they share

tokens = st.lists(st.integers(0, 2), max_size=15)


@settings(deadline=None, derandomize=True)
@given(tokens, tokens, st.integers(1, 6))
def test_a_text_knows_every_occurrence_of_a_suffix(text: list[int], suffix: list[int], longest: int) -> None:
    found = list(Text(text).behind(suffix, longest))
    for size in range(1, min(longest, len(suffix)) + 1):
        places = [at for at in range(size, len(text) + 1) if text[at - size : at] == suffix[-size:]]
        assert (found[size - 1] if size <= len(found) else []) == places


@settings(deadline=None, derandomize=True)
@given(tokens, tokens)
def test_a_text_knows_the_longest_prefix_that_it_holds(text: list[int], wanted: list[int]) -> None:
    sizes = [
        size
        for size in range(len(wanted) + 1)
        if any(text[at : at + size] == wanted[:size] for at in range(len(text) + 1))
    ]
    assert Text(text).longest_prefix(wanted) == max(sizes)


@settings(deadline=None, derandomize=True)
@given(tokens, st.integers(0, 8), st.integers(1, 3), st.integers(1, 4))
def test_a_grown_tree_holds_the_paths_with_the_highest_counts(
    text: list[int], budget: int, least: int, deepest: int
) -> None:
    counts: dict[tuple[int, ...], int] = {}
    for start in range(len(text)):
        for stop in range(start + 1, min(start + deepest, len(text)) + 1):
            counts[tuple(text[start:stop])] = counts.get(tuple(text[start:stop]), 0) + 1
    best = sorted((count for count in counts.values() if count >= least), reverse=True)[:budget]
    tree = grow(Text(text), range(len(text) + 1), budget, least=least, deepest=deepest)
    assert [counts[tuple(path)] for path in paths(tree)] == best
    assert tree.count == sum(best)
