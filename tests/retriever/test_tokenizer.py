from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from refdraft.errors import NotFoundError, PreconditionError
from refdraft.retriever.tokenizer import Tokenizer


def copy_of(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())


def test_ids_come_back_as_the_same_text(tokenizer: Tokenizer) -> None:
    text = "with statement: naïve 😀\r\n\tend"
    assert tokenizer.decode(tokenizer.encode(text).tolist()) == text
    assert tokenizer.encode_batch([text, ""]) == [tokenizer.encode(text).tolist(), []]


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_offsets_count_code_points_and_cover_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text).tolist()
    assert offsets.shape == (len(ids), 2)
    covered = {place for start, end in offsets.tolist() for place in range(start, end)}
    assert covered == set(range(len(text)))


def test_padding_and_truncation_neither_act_nor_count(tokenizer: Tokenizer) -> None:
    backend = copy_of(tokenizer)
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    other = Tokenizer(backend)
    assert other.encode("a much longer text").tolist() == tokenizer.encode("a much longer text").tolist()
    assert other.fingerprint == tokenizer.fingerprint


def test_another_vocabulary_or_normalizer_has_another_fingerprint(tokenizer: Tokenizer) -> None:
    more, lower = copy_of(tokenizer), copy_of(tokenizer)
    more.add_tokens(["<reference>"])
    lower.normalizer = tokenizers.normalizers.Lowercase()
    fingerprints = {Tokenizer(backend).fingerprint for backend in (more, lower)} | {tokenizer.fingerprint}
    assert len(fingerprints) == 3
    assert Tokenizer(more).vocabulary_size == tokenizer.vocabulary_size + 1


def test_load_reads_what_was_saved(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint


def test_load_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"tokenizer\.json does not exist"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(PreconditionError, match="not a tokenizer"):
        Tokenizer.load(tmp_path)
