import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.errors import InvalidRequestError
from refdraft.index_builder.chunking import Chunk, Chunker, ChunkOptions
from refdraft.retriever.tokenizer import Tokenizer


def chunks_of(tokenizer: Tokenizer, text: str, passage: int, overlap: int) -> list[Chunk]:
    options = ChunkOptions(passage_tokens=passage, overlap_tokens=overlap)
    return list(Chunker(tokenizer, options).chunks(text))


def check(tokenizer: Tokenizer, text: str, passage: int, overlap: int) -> list[Chunk]:
    """Everything a passage promises."""
    chunks = chunks_of(tokenizer, text, passage, overlap)
    covered: set[int] = set()
    for chunk in chunks:
        piece = text[chunk.start : chunk.end]
        assert piece
        assert piece == piece.strip()
        assert chunk.token_ids.tolist() == tokenizer.encode(piece).tolist()
        assert len(chunk.token_ids) <= passage
        covered.update(range(chunk.start, chunk.end))
    assert {place for place, sign in enumerate(text) if not sign.isspace()} <= covered
    for before, after in itertools.pairwise(chunks):
        assert before.start < after.start
        assert before.end < after.end
        repeated = text[after.start : before.end]
        assert len(tokenizer.encode(repeated)) <= overlap + 16 if repeated else True
    return chunks


words = st.sampled_from(
    ["the", "statement", "a", "Otter", "x" * 40, "\U0001f600", "na\u00efve", "1.5", "\u6771\u4eac\u3002", "''", "..."]
)
gaps = st.sampled_from([" ", " ", " ", ". ", "! ", '." ', "\n", "\n\n", "\r\n\r\n", "", "\u00a0", "   "])
prose = st.lists(st.tuples(words, gaps), max_size=80).map(lambda pairs: "".join(itertools.chain(*pairs)))
anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@settings(deadline=None)
@given(text=prose | anything, passage=st.integers(16, 64), share=st.floats(0, 0.5))
def test_passages_cover_the_text_exactly_and_keep_to_their_size(
    tokenizer: Tokenizer, text: str, passage: int, share: float
) -> None:
    check(tokenizer, text, passage, int(passage * share))


def test_whole_sentences_with_the_last_one_repeated(tokenizer: Tokenizer) -> None:
    text = 'The first one is here. "Is this the second?" The third one ends here! And here is a fourth one.'
    pieces = [text[chunk.start : chunk.end] for chunk in check(tokenizer, text, 32, 16)]
    sentences = [
        "The first one is here.",
        '"Is this the second?"',
        "The third one ends here!",
        "And here is a fourth one.",
    ]
    assert len(pieces) > 1
    for piece in pieces:
        assert any(piece.startswith(sentence) for sentence in sentences)
        assert any(piece.endswith(sentence) for sentence in sentences)
    assert pieces[1].startswith(next(sentence for sentence in reversed(sentences) if pieces[0].endswith(sentence)))


def test_a_paragraph_ends_a_sentence_even_without_a_mark(tokenizer: Tokenizer) -> None:
    text = "A heading without a mark\r\n\r\nthen the text goes on and on for a while"
    assert text[: check(tokenizer, text, 24, 0)[0].end] == "A heading without a mark"


def test_white_space_alone_gives_nothing(tokenizer: Tokenizer) -> None:
    assert chunks_of(tokenizer, "", 16, 0) == []
    assert chunks_of(tokenizer, " \r\n\t\u00a0" * 1000, 16, 0) == []


@pytest.mark.parametrize("sign", ["x", ".", '"', "\n", "\U0001f600", '."', "\u3002"])
def test_monotonous_text(tokenizer: Tokenizer, sign: str) -> None:
    check(tokenizer, "start " + sign * (30_000 // len(sign)) + " end", 256, 32)


@pytest.mark.parametrize("sign", ["x", "word ", '.")'])
def test_a_megabyte_in_one_line_takes_seconds(tokenizer: Tokenizer, sign: str) -> None:
    text = sign * (1_000_000 // len(sign))
    started = time.monotonic()
    chunks = chunks_of(tokenizer, text, 256, 0)
    assert time.monotonic() - started < 30
    assert "".join(text[chunk.start : chunk.end] for chunk in chunks).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(("passage", "overlap"), [(15, 0), (0, 0), (64, 33), (64, -1)])
def test_sizes_out_of_range(passage: int, overlap: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"passage-tokens|overlap-tokens"):
        ChunkOptions(passage_tokens=passage, overlap_tokens=overlap)
