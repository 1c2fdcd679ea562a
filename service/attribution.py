"""Which characters of the output were copied from which characters of a document."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from refdraft.decoder.draft import Origin
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.types import Attribution


@dataclass(frozen=True, slots=True)
class Document:
    """A text that is drafted from.

    Attributes:
        id: what attributions call it.
        text: the whole document, or a passage of it.
        start: character offset of `text` in the document.
        token_ids: tokens of `text`.
        spans: half-open character range of each token in `text`.
    """

    id: str
    text: str
    start: int
    token_ids: Sequence[int]
    spans: Sequence[tuple[int, int]]

    @classmethod
    def of_text(
        cls, tokenizer: Tokenizer, text: str, *, id: str, start: int = 0, most: int | None = None
    ) -> "Document":
        """Tokenise a text, and keep its first `most` tokens (None: all)."""
        token_ids, spans = tokenizer.encode_with_offsets(text)
        return cls(id, text, start, token_ids[:most].tolist(), [(a, b) for a, b in spans[:most].tolist()])


class Documents:
    """What the origins of draft tokens refer to.

    Args:
        references: the request's own documents, as origins count them.
        passage: makes the document of a passage of the corpus from its number; None without a corpus.
    """

    def __init__(self, references: Sequence[Document], passage: Callable[[int], Document] | None = None) -> None:
        self._references, self._passage = references, passage
        self._passages: dict[int, Document] = {}

    def find(self, origin: Origin | None) -> Document | None:
        """The document that a token was copied from; None where it was not copied from one."""
        if origin is None:
            return None
        if origin.source == "references":
            return self._references[origin.document]
        if origin.source != "corpus" or self._passage is None:
            return None
        if origin.document not in self._passages:
            self._passages[origin.document] = self._passage(origin.document)
        return self._passages[origin.document]


@dataclass(slots=True)
class _Copy:
    """Output tokens [start, end) equal the document's tokens from `offset` on."""

    start: int
    end: int
    document: Document
    offset: int


def attribute(
    text: str,
    token_ids: Sequence[int],
    spans: Sequence[tuple[int, int]],
    origins: Sequence[Origin | None],
    documents: Documents,
    *,
    min_tokens: int,
) -> list[Attribution]:
    """Merge accepted draft tokens to spans of characters.

    A span grows over tokens beside the accepted ones that equal the document's: the match a draft hung from,
    and tokens that the target wrote itself where the draft was cut short.

    Args:
        text: the output.
        token_ids: its tokens.
        spans: character range of each token in `text`.
        origins: where each token was copied from, None for the target's own.
        documents: what origins refer to; tokens from elsewhere are not attributed.
        min_tokens: shorter copies are left out.

    Returns:
        Disjoint spans in order of the output, for each of which the output's characters equal the document's.
    """
    attributions = []
    for copy in _copies(token_ids, origins[: len(spans)], documents):
        document = copy.document
        if copy.end - copy.start < min_tokens:
            continue
        output = spans[copy.start][0], spans[copy.end - 1][1]
        last = copy.offset + copy.end - copy.start - 1
        equal = _trim(text, output, document.text, (document.spans[copy.offset][0], document.spans[last][1]))
        if equal:
            start, end, document_start = equal
            attributions.append(
                Attribution(
                    output_start=start,
                    output_end=end,
                    document_id=document.id,
                    document_start=document.start + document_start,
                    document_end=document.start + document_start + end - start,
                )
            )
    return attributions


def _copies(token_ids: Sequence[int], origins: Sequence[Origin | None], documents: Documents) -> Iterator[_Copy]:
    """Maximal copies around the accepted tokens, disjoint and in order."""
    position = 0  # tokens before it belong to an earlier copy, or to none
    for index, origin in enumerate(origins):
        document = documents.find(origin) if index >= position else None
        if origin is None or document is None:
            continue
        tokens = document.token_ids
        start, offset = index, origin.offset
        while start > position and offset > 0 and token_ids[start - 1] == tokens[offset - 1]:
            start, offset = start - 1, offset - 1
        end, stop = index, origin.offset
        while end < len(origins) and stop < len(tokens) and token_ids[end] == tokens[stop]:
            end, stop = end + 1, stop + 1
        if end > start:
            yield _Copy(start, end, document, offset)
            position = end


def _trim(
    text: str, output: tuple[int, int], document_text: str, document: tuple[int, int]
) -> tuple[int, int, int] | None:
    """Shrink two ranges of characters to where they are equal: (output start, output end, document start).

    Tokenizers differ on whether a token's range holds the space before it, and a token may hold part of a
    character only, so the ends of the ranges can be off by a little.
    """
    (start, end), (document_start, document_end) = output, document
    copied, original = text[start:end], document_text[document_start:document_end]
    core = copied.strip()
    at = original.find(core)
    if not core or at < 0:
        return None
    start += copied.index(core)
    document_start += at
    return start, start + len(core), document_start
