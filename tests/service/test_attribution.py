from typing import TYPE_CHECKING

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.draft import Origin
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.attribution import Document, Documents, attribute
from refdraft.service.text import OutputText
from refdraft.service.types import Attribution

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer: "PreTrainedTokenizerFast") -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(tiny_tokenizer.backend_tokenizer.to_str()))


def read(tokenizer: Tokenizer, token_ids: list[int]) -> OutputText:
    output = OutputText(tokenizer)
    for token in token_ids:
        output.push(token)
    output.finish()
    return output


def attribute_copies(
    tokenizer: Tokenizer,
    token_ids: list[int],
    origins: list[Origin | None],
    documents: list[Document],
    min_tokens: int = 1,
) -> tuple[str, list[Attribution]]:
    output = read(tokenizer, token_ids)
    spans = attribute(output.text, token_ids, output.spans, origins, Documents(documents), min_tokens=min_tokens)
    return output.text, spans


def test_every_attribution_is_a_true_copy(tokenizer: Tokenizer) -> None:
    """Outputs patched together from runs of documents, cut anywhere: in a word, in a character, in a space."""
    texts = st.text(st.sampled_from("ab  €😀é\nthe"), min_size=1, max_size=20)
    runs = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 8), st.booleans()), max_size=6)

    @settings(deadline=None, max_examples=400, derandomize=True)
    @given(st.lists(texts, min_size=3, max_size=3), runs)
    def check(texts: list[str], runs: list[tuple[int, int, int, bool]]) -> None:
        documents = [Document.of_text(tokenizer, text, id=str(n), start=100 * n) for n, text in enumerate(texts)]
        token_ids: list[int] = []
        origins: list[Origin | None] = []
        for number, offset, length, accepted in runs:
            for at in range(offset, min(offset + length, len(documents[number].token_ids))):
                token_ids.append(documents[number].token_ids[at])
                origins.append(Origin("references", number, at) if accepted else None)
        text, spans = attribute_copies(tokenizer, token_ids, origins, documents)
        for span in spans:
            start = documents[int(span.document_id)].start
            original = texts[int(span.document_id)][span.document_start - start : span.document_end - start]
            assert text[span.output_start : span.output_end] == original != ""
        ends = [0, *(end for span in spans for end in (span.output_start, span.output_end)), len(text)]
        assert ends == sorted(ends)  # disjoint and in order

    check()


def test_a_copy_grows_over_the_match_before_it_and_the_bonus_behind_it(tokenizer: Tokenizer) -> None:
    document = Document.of_text(tokenizer, "One two three four five six.", id="d", start=1000)
    ids = list(document.token_ids)
    origins: list[Origin | None] = [None] * len(ids)
    middle = len(ids) // 2
    origins[middle] = Origin("references", 0, middle)
    text, spans = attribute_copies(tokenizer, ids, origins, [document], min_tokens=4)
    assert text == document.text
    assert spans == [
        Attribution(
            output_start=0, output_end=len(text), document_id="d", document_start=1000, document_end=1000 + len(text)
        )
    ]


def test_a_passage_of_the_corpus_is_made_once_and_credited(tokenizer: Tokenizer) -> None:
    text = "The quick brown fox jumps over the lazy dog."
    made: list[int] = []

    def passage(number: int) -> Document:
        made.append(number)
        return Document.of_text(tokenizer, text, id=f"passage {number}", start=70)

    ids = list(Document.of_text(tokenizer, text, id="").token_ids)
    output = OutputText(tokenizer)
    for token in ids:
        output.push(token)
    output.finish()
    origins = [Origin("corpus", 9, offset) for offset in range(len(ids))]
    for _ in range(2):
        (span,) = attribute(output.text, ids, output.spans, origins, Documents([], passage), min_tokens=1)
        assert (span.document_id, span.document_start) == ("passage 9", 70)
        assert text[: span.document_end - 70] == output.text[: span.output_end]
    assert len(made) == 2, "once for each request"
    assert attribute(output.text, ids, output.spans, origins, Documents([]), min_tokens=1) == []


def test_only_the_named_source_and_long_enough_copies_are_attributed(tokenizer: Tokenizer) -> None:
    document = Document.of_text(tokenizer, "One two three four five six.", id="d")
    ids = list(document.token_ids)
    size = len(ids)
    prompt: list[Origin | None] = [Origin("prompt", 0, at) for at in range(size)]
    assert attribute_copies(tokenizer, ids, prompt, [document])[1] == []
    own: list[Origin | None] = [Origin("references", 0, at) for at in range(size)]
    assert len(attribute_copies(tokenizer, ids, own, [document], min_tokens=size)[1]) == 1
    assert attribute_copies(tokenizer, ids, own, [document], min_tokens=size + 1)[1] == []


def test_bare_space_is_no_quotation(tokenizer: Tokenizer) -> None:
    document = Document.of_text(tokenizer, "a \n\n b", id="d")
    ids = tokenizer.encode(" \n\n ").tolist()
    start = list(document.token_ids).index(ids[0])
    origins: list[Origin | None] = [Origin("references", 0, start + at) for at in range(len(ids))]
    assert attribute_copies(tokenizer, ids, origins, [document])[1] == []
