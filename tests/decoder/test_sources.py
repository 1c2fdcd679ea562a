"""What sources propose, against brute force: the longest suffix, true copies, never over a document's end."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.sources import ContextSource, DocumentSource

tokens = st.lists(st.integers(0, 3), max_size=14)


def holds(text: Sequence[int], wanted: Sequence[int]) -> bool:
    return any(list(text[at : at + len(wanted)]) == list(wanted) for at in range(len(text) - len(wanted) + 1))


def longest_suffix(texts: Sequence[Sequence[int]], context: Sequence[int]) -> int:
    fitting = (n for n in range(len(context), 0, -1) if any(holds(text, context[-n:]) for text in texts))
    return next(fitting, 0)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.lists(tokens, max_size=3), tokens, st.integers(1, 5))
def test_documents_propose_what_follows_the_longest_match(
    documents: list[list[int]], context: list[int], limit: int
) -> None:
    source = DocumentSource("references", documents)
    for size in range(1, len(context) + 1):
        source.advance(context[size - 1])
        span = source.propose(limit)
        longest = longest_suffix(documents, context[:size])
        if span is None:  # nothing matches, or a document ends there
            suffix = context[size - longest : size]
            assert not longest or any(document[-longest:] == suffix for document in documents)
            continue
        assert span.match_length == longest > 0
        assert span.source == "references"
        _, number, start = span.origins[0]
        assert documents[number][start - longest : start] == context[size - longest : size]
        assert list(span.tokens) == documents[number][start : start + limit]
        assert [(o.document, o.offset) for o in span.origins] == [(number, start + i) for i in range(len(span.tokens))]


@settings(deadline=None, max_examples=300, derandomize=True)
@given(tokens, tokens, st.integers(1, 5), st.booleans(), st.booleans())
def test_the_context_proposes_what_followed_its_end_before(
    prompt: list[int], output: list[int], limit: int, copy_prompt: bool, copy_output: bool
) -> None:
    source = ContextSource(prompt, copy_prompt=copy_prompt, copy_output=copy_output)
    context = prompt if copy_prompt else []
    for size in range(len(output) + 1):
        if size:
            source.advance(output[size - 1])
        followed = context + output[:size]
        text = context + (output[:size] if copy_output else [])
        earlier = text[:-1] if len(text) == len(followed) else text  # a suffix does not match itself
        longest = longest_suffix([earlier], followed)
        span = source.propose(limit)
        if span is None:
            suffix = followed[len(followed) - longest :]
            assert not longest or (text[-longest:] == suffix and len(text) < len(followed))
            continue
        assert span.match_length == longest > 0
        copied = [{"prompt": prompt, "output": output[:size]}[o.source][o.offset] for o in span.origins]
        assert list(span.tokens) == copied
        starts = [o.offset + (len(context) if o.source == "output" else 0) for o in span.origins]
        assert starts == list(range(starts[0], starts[0] + len(starts)))
        assert len(starts) == min(limit, len(text) - starts[0])
        assert text[starts[0] - longest : starts[0]] == followed[len(followed) - longest :]
        assert {o.source for o in span.origins} <= ({"prompt"} if not copy_output else {"prompt", "output"})


def test_a_copy_goes_on_where_it_began() -> None:
    """The second document is being copied: an equal run in the first does not draw the copy away."""
    source = DocumentSource("references", [[5, 1, 2, 9], [7, 1, 2, 3, 4]])
    for token in (7, 1, 2):
        source.advance(token)
    span = source.propose(4)
    assert span is not None
    assert span.tokens == (3, 4)
    assert (span.origins[0].document, span.origins[0].offset) == (1, 3)


def test_empty_documents_and_contexts_propose_nothing() -> None:
    source = DocumentSource("references", [[], [1], []])
    assert source.propose(4) is None
    source.advance(1)
    assert source.propose(4) is None
    assert ContextSource([], copy_prompt=True, copy_output=True).propose(4) is None
