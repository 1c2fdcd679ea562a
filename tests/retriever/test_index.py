import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from refdraft.decoder.corpus import LONGEST, Corpus
from refdraft.errors import IndexFormatError, InvalidRequestError, NotFoundError, PreconditionError
from refdraft.index_builder.build import BuildOptions, build_index
from refdraft.index_builder.verify import verify_index
from refdraft.retriever.index import Index
from refdraft.retriever.manifest import PARSED_FILES, PASSAGE, SUFFIX_DEPTH, Manifest
from refdraft.retriever.tokenizer import Tokenizer
from tests.retriever.conftest import FACTS, fail


@pytest.fixture
def copied(facts: Path, tmp_path: Path) -> Path:
    return shutil.copytree(facts, tmp_path / "index")


def test_all_three_modes_find_the_document(facts: Path) -> None:
    with Index.open(facts) as index:
        assert index.modes == ("bm25", "dense", "hybrid")
        for mode in index.modes:
            hit = index.search("When did the Remagen bridge fall?", top_k=2, mode=mode)[0]
            assert hit.passage.document_id == "bridge.txt"
            assert index.passages[hit.number] == hit.passage


def test_passages_are_exact_cuts_with_their_own_token_ids(facts: Path, tokenizer: Tokenizer) -> None:
    with Index.open(facts, name="facts") as index:
        assert index.name == "facts"
        assert len(index.passages) == index.manifest.passages
        for number, passage in enumerate(index.passages):
            text = FACTS[passage.document_id.removesuffix(".txt")]
            assert text[passage.start : passage.start + len(passage.text)] == passage.text
            assert index.passages.token_ids(number).tolist() == tokenizer.encode(passage.text).tolist()
        for outside in (-1, len(index.passages)):
            with pytest.raises(IndexError):
                index.passages[outside]


def test_more_hits_asked_than_there_are(facts: Path) -> None:
    with Index.open(facts) as index:
        assert len(index.search("otters", top_k=1_000_000)) == index.manifest.passages
        assert len(index.search("otters", top_k=1_000_000, mode="bm25")) == 1
        assert index.search("unheardof", top_k=3, mode="bm25") == []


@pytest.mark.parametrize(
    ("query", "top_k", "mode", "field"),
    [
        ("", 1, None, "query"),
        (" \n", 1, None, "query"),
        ("\ud800", 1, None, "query"),
        ("a", 0, None, "top_k"),
        ("a", 1, "x", "mode"),
    ],
)
def test_bad_arguments_are_named(facts: Path, query: str, top_k: int, mode: str | None, field: str) -> None:
    with Index.open(facts) as index, pytest.raises(InvalidRequestError) as caught:
        index.search(query, top_k=top_k, mode=mode)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_without_vectors_only_bm25(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_text("Only words here.")
    build_index([tmp_path / "a.txt"], tmp_path / "out", tokenizer, BuildOptions(dense=False), fail)
    with Index.open(tmp_path / "out") as index:
        assert index.modes == ("bm25",)
        assert len(index.search("words", top_k=3)) == 1
        with pytest.raises(PreconditionError, match="no vectors"):
            index.search("words", top_k=3, mode="hybrid")


def test_another_tokenizer_is_refused_with_the_way_out(facts: Path, tokenizer: Tokenizer) -> None:
    Index.open(facts, tokenizer_fingerprint=tokenizer.fingerprint).close()
    with pytest.raises(PreconditionError, match=r"refdraft index build .* --force"):
        Index.open(facts, tokenizer_fingerprint="0" * 64)


def test_what_is_no_index(tmp_path: Path, copied: Path) -> None:
    with pytest.raises(NotFoundError, match="does not exist"):
        Index.open(tmp_path / "nowhere")
    (copied / "manifest.json").unlink()
    with pytest.raises(IndexFormatError, match=r"no manifest\.json"):
        Index.open(copied)
    for text in ("[]", "{}", "{", "\0", '{"format": "refdraft-index", "format_version": 99}'):
        (copied / "manifest.json").write_text(text)
        with pytest.raises(IndexFormatError):
            Index.open(copied)


def test_an_index_of_an_older_version_is_refused_with_the_way_out(copied: Path) -> None:
    path = copied / "manifest.json"
    path.write_text(path.read_text().replace('"format_version": 2', '"format_version": 1'))
    with pytest.raises(IndexFormatError, match="index format 1, this version reads 2: rebuild it"):
        Index.open(copied)


def test_all_tokens_can_be_searched_as_one_text(facts: Path, tokenizer: Tokenizer) -> None:
    said = tokenizer.encode("Somebody told me that engineers had already crossed")
    with Index.open(facts) as index:
        store = index.passages.token_store
        corpus = Corpus(store.tokens, store.suffixes, store.starts)
        position = int(corpus.find(said, 1)[0][0])
        number, offset = corpus.passage(position)
        assert index.passages[number].document_id == "bridge.txt"
        copied = corpus.copy(position, 100)
        assert tokenizer.decode(copied.tolist()) == " the river by then."
        assert copied.tolist() == index.passages.token_ids(number)[offset:].tolist()


def test_every_token_is_found_by_those_before_it(facts: Path) -> None:
    assert LONGEST <= SUFFIX_DEPTH, "what is told apart must be sorted"
    with Index.open(facts) as index:
        store = index.passages.token_store
        corpus = Corpus(store.tokens, store.suffixes, store.starts)
        for number, start in enumerate(store.starts.tolist()):
            ids = index.passages.token_ids(number)
            for offset in range(1, len(ids)):
                positions, lengths = corpus.find(ids[:offset], len(store.tokens))
                assert lengths[0] == min(offset, LONGEST)
                assert start + offset in positions[lengths == lengths[0]]


def test_places_that_are_none_make_no_match(copied: Path, tokenizer: Tokenizer) -> None:
    size = (copied / "suffixes.bin").stat().st_size
    (copied / "suffixes.bin").write_bytes(b"\xff" * size)
    with Index.open(copied) as index:
        store = index.passages.token_store
        corpus = Corpus(store.tokens, store.suffixes, store.starts)
        assert len(corpus.find(tokenizer.encode("Otters hold"), 4)[0]) == 0


def test_passages_that_do_not_follow_one_another_are_refused(copied: Path) -> None:
    records = np.fromfile(copied / "passages.bin", dtype=PASSAGE)
    for offsets in ([1, 2, 3, 4], [0, 9, 8, 10], [0, 1, 2, 1 << 40], [0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]):
        records["token_offset"] = offsets
        records.tofile(copied / "passages.bin")
        with Index.open(copied) as index, pytest.raises(IndexFormatError, match=r"passages\.bin is damaged: rebuild"):
            _ = index.passages.token_store


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_a_truncated_or_missing_file_never_opens(copied: Path) -> None:
    for path in files_of(copied):
        whole = path.read_bytes()
        for damaged in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"x"):
            path.write_bytes(damaged)
            with pytest.raises(IndexFormatError, match=r"rebuild|not an index"):
                Index.open(copied)
        path.unlink()
        with pytest.raises(IndexFormatError):
            Index.open(copied)
        path.write_bytes(whole)
    verify_index(copied)


def test_a_flipped_bit_is_found_by_verify_and_never_crashes(copied: Path) -> None:
    for path in files_of(copied):
        whole = path.read_bytes()
        for place in {0, len(whole) // 3, len(whole) // 2, len(whole) - 3}:
            for bit in (1, 128):
                damaged = bytearray(whole)
                damaged[place] ^= bit
                path.write_bytes(damaged)
                with pytest.raises(IndexFormatError):
                    verify_index(copied)
                _use(copied, must_refuse=_name(path, copied) in PARSED_FILES | {"manifest.json"})
        path.write_bytes(whole)


def _name(path: Path, directory: Path) -> str:
    return path.relative_to(directory).as_posix()


def _use(directory: Path, *, must_refuse: bool) -> None:
    """Parsed files are refused at once; mapped ones may go unseen, or give an IndexFormatError later."""
    try:
        with Index.open(directory) as index:
            assert not must_refuse
            index.search("otters bridge bread", top_k=9)
            store = index.passages.token_store
            corpus = Corpus(store.tokens, store.suffixes, store.starts)
            for position in corpus.find(store.tokens[:7].astype(np.int32), 9)[0].tolist():
                corpus.copy(position, 9)
            for number in range(len(index.passages)):
                index.passages.token_ids(number)
                _ = index.passages[number]
    except IndexFormatError:
        pass


def test_a_manifest_edited_by_hand_is_refused(copied: Path) -> None:
    path = copied / "manifest.json"
    body = json.loads(path.read_text())
    body["tokenizer_fingerprint"] = "0" * 64
    path.write_text(json.dumps(body))
    with pytest.raises(IndexFormatError, match="altered"):
        Manifest.read(copied)


@pytest.mark.parametrize("files", [None, [], {"../../etc/passwd": {"size": 1, "sha256": "0"}}, {"text.bin": {}}])
def test_a_manifest_made_up_with_a_right_checksum_is_refused(copied: Path, files: object) -> None:
    path = copied / "manifest.json"
    body = json.loads(path.read_text())
    del body["checksum"]
    body["files"] = files
    body["checksum"] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(body))
    with pytest.raises(IndexFormatError, match=r"lacks entries|wrong files"):
        Manifest.read(copied)
