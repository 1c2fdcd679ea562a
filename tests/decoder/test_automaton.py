"""The automaton against brute force, on small alphabets where everything repeats."""

from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.automaton import BORDER, SuffixAutomaton, SuffixMatch

tokens = st.lists(st.integers(0, 2), max_size=14)
documents = st.lists(tokens, max_size=4)


def first_end(documents: list[list[int]], wanted: list[int]) -> int | None:
    """Index of the last token of the first occurrence, documents laid side by side with one border behind each."""
    start = 0
    for document in documents:
        for at in range(len(document) - len(wanted) + 1):
            if document[at : at + len(wanted)] == wanted:
                return start + at + len(wanted) - 1
        start += len(document) + 1
    return None


def longest_suffix(documents: list[list[int]], context: list[int]) -> tuple[int, int]:
    """Length and first end of the longest suffix of the context that some document holds; (0, -1) without one."""
    for length in range(len(context), 0, -1):
        end = first_end(documents, context[-length:])
        if end is not None:
            return length, end
    return 0, -1


@settings(deadline=None, max_examples=300, derandomize=True)
@given(documents, tokens)
def test_a_match_is_the_longest_suffix_at_its_first_place(documents: list[list[int]], context: list[int]) -> None:
    automaton = SuffixAutomaton()
    for document in documents:
        automaton.add_document(document)
    match = SuffixMatch(automaton)
    for size in range(1, len(context) + 1):
        match.advance(context[size - 1])
        assert (match.length, match.end) == longest_suffix(documents, context[:size])


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.lists(st.integers(0, 2), max_size=24))
def test_a_text_that_grows_is_matched_against_what_stood_before(context: list[int]) -> None:
    automaton = SuffixAutomaton()
    match = SuffixMatch(automaton)
    for size, token in enumerate(context):
        match.advance(token)
        automaton.append(token)
        match.settle()
        assert (match.length, match.end) == longest_suffix([context[:size]], context[: size + 1])


@settings(deadline=None, max_examples=100, derandomize=True)
@given(documents)
def test_the_automaton_holds_exactly_the_documents_substrings(documents: list[list[int]]) -> None:
    automaton = SuffixAutomaton()
    for document in documents:
        automaton.add_document(document)
    assert automaton.tokens == [token for document in documents for token in [*document, BORDER]]
    assert len(automaton.next) <= 2 * sum(map(len, documents)) + 1

    def holds(string: list[int]) -> bool:
        state = 0
        for token in string:
            if token not in automaton.next[state]:
                return False
            state = automaton.next[state][token]
        return True

    texts = {tuple(d[a:b]) for d in documents for a in range(len(d)) for b in range(a + 1, len(d) + 1)}
    assert all(holds(list(text)) for text in texts)
    for text in texts:
        assert all(((*text, token) in texts) == holds([*text, token]) for token in (0, 1, 2))


def test_building_and_following_stay_linear() -> None:
    """On periodic text, where a rescan at every token would cost the square: seconds instead of hours."""
    automaton = SuffixAutomaton()
    match = SuffixMatch(automaton)
    for size in range(50_000):
        match.advance(size % 3)
        automaton.append(size % 3)
        match.settle()
    assert match.length == 50_000 - 3
    assert len(automaton.next) < 100_000
