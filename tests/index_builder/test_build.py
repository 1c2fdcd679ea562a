import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refdraft.errors import IndexFormatError, NotFoundError, PreconditionError, SourceFormatError
from refdraft.index_builder.build import BuildOptions, build_index
from refdraft.index_builder.chunking import ChunkOptions
from refdraft.index_builder.documents import Columns, Problem
from refdraft.index_builder.verify import verify_index
from refdraft.retriever.index import Index
from refdraft.retriever.tokenizer import Tokenizer


def fail(problem: Problem) -> None:
    raise SourceFormatError(str(problem))


def build(source: Path, out: Path, tokenizer: Tokenizer, *, force: bool = False, dense: bool = False) -> None:
    build_index([source], out, tokenizer, BuildOptions(force=force, dense=dense), fail)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.txt").write_text("The old text.")
    return tmp_path / "source"


def texts(index: Path) -> list[str]:
    with Index.open(index) as opened:
        return [passage.text for passage in opened.passages]


def test_titles_and_metadata_come_back_and_are_searched(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.csv").write_text("id,text,title,year\n1,It is the tallest.,Eiffel Tower,1889\n2,It is long.,,1\n")
    options = BuildOptions(columns=Columns(metadata=("year",)))
    build_index([tmp_path / "a.csv"], tmp_path / "out", tokenizer, options, fail)
    with Index.open(tmp_path / "out") as index:
        for mode in index.modes:
            passage = index.search("eiffel", top_k=1, mode=mode)[0].passage
            assert (passage.title, passage.text) == ("Eiffel Tower", "It is the tallest.")
            assert passage.metadata == {"year": "1889"}


def test_offsets_count_characters_whatever_their_bytes(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = "\r\n".join(f"Caf\u00e9 {number} \U0001f600 \u6771\u4eac \U0001d49c ends here." for number in range(200))
    (tmp_path / "a.txt").write_bytes(text.encode())
    options = BuildOptions(chunks=ChunkOptions(passage_tokens=64, overlap_tokens=20), dense=False)
    manifest = build_index([tmp_path / "a.txt"], tmp_path / "out", tokenizer, options, fail)
    assert manifest.passages > 50
    with Index.open(tmp_path / "out") as index:
        for number, passage in enumerate(index.passages):
            assert text[passage.start : passage.start + len(passage.text)] == passage.text
            assert index.passages.token_ids(number).tolist() == tokenizer.encode(passage.text).tolist()


def test_the_same_source_gives_the_same_bytes(source: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    for out in ("one", "two"):
        build(source, tmp_path / out, tokenizer, dense=True)
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "two" / "manifest.json").read_bytes()


def test_an_index_is_replaced_only_by_force(source: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    out = tmp_path / "out"
    build(source, out, tokenizer)
    (source / "a.txt").write_text("The new text.")
    with pytest.raises(PreconditionError, match="--force"):
        build(source, out, tokenizer)
    assert texts(out) == ["The old text."]
    with Index.open(out) as opened_before:
        build(source, out, tokenizer, force=True)
        assert opened_before.passages[0].text == "The old text."
    assert texts(out) == ["The new text."]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_what_is_no_index_is_never_replaced(source: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    for place in (out, out / "notes.txt", source):
        with pytest.raises(PreconditionError, match="choose another place"):
            build(source, place, tokenizer, force=True)
    (out / "notes.txt").unlink()
    build(source, out, tokenizer)  # an empty folder is nobody's
    (out / "notes.txt").write_text("mine")
    with pytest.raises(PreconditionError, match=r"notes\.txt does not belong to the index"):
        build(source, out, tokenizer, force=True)
    assert (out / "notes.txt").read_text() == "mine"


def test_a_damaged_index_can_be_replaced(source: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    out = tmp_path / "out"
    build(source, out, tokenizer)
    (out / "tokens.bin").unlink()
    (out / "manifest.json").write_text((out / "manifest.json").read_text().replace('"tokens": ', '"tokens": 1'))
    build(source, out, tokenizer, force=True)
    verify_index(out)


def test_nothing_to_index(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceFormatError, match="nothing to index"):
        build(tmp_path / "empty", tmp_path / "out", tokenizer)
    with pytest.raises(NotFoundError):
        build(tmp_path / "nowhere", tmp_path / "out", tokenizer)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_failed_build_leaves_the_old_index(source: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    out = tmp_path / "out"
    build(source, out, tokenizer)
    (source / "b.txt").write_bytes(b"\xff")
    with pytest.raises(SourceFormatError, match=r"b\.txt:1: not UTF-8"):
        build(source, out, tokenizer, force=True)
    assert texts(out) == ["The old text."]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


BUILD = """
import sys
from pathlib import Path
from refdraft.index_builder.build import BuildOptions, build_index
from refdraft.retriever.tokenizer import Tokenizer
print("ready", flush=True)
source, out, tokenizer = map(Path, sys.argv[1:])
build_index([source], out, Tokenizer.load(tokenizer), BuildOptions(dense=False, force=True), print)
"""


def test_a_build_killed_at_any_moment_leaves_an_old_or_a_new_index(
    source: Path, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    out = tmp_path / "out"
    build(source, out, tokenizer)
    (tmp_path / "model").mkdir()
    tokenizer.backend.save(str(tmp_path / "model" / "tokenizer.json"))
    (source / "a.txt").write_text("The new text. " * 2000)
    for delay in (0.0, 0.05, 0.15, 0.3):
        command = [sys.executable, "-c", BUILD, str(source), str(out), str(tmp_path / "model")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        verify_index(out)
        assert texts(out)[0].startswith(("The old text.", "The new text."))
        partial = tmp_path / ".out.partial"
        if partial.exists() and not (partial / "manifest.json").exists():
            with pytest.raises(IndexFormatError):
                Index.open(partial)
    build(source, out, tokenizer, force=True)
    assert texts(out)[0].startswith("The new text.")
    assert not (tmp_path / ".out.partial").exists()


def test_two_builds_of_one_index_at_once(source: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    out = tmp_path / "out"
    (source / "b.txt").write_bytes(b"\xff")

    def second(problem: Problem) -> None:
        with pytest.raises(PreconditionError, match="another build"):
            build(source / "a.txt", out, tokenizer)

    build_index([source], out, tokenizer, BuildOptions(dense=False), second)
    assert texts(out) == ["The old text."]


def test_a_file_system_that_cannot_exchange(
    source: Path, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from refdraft.index_builder import replace

    out = tmp_path / "out"
    build(source, out, tokenizer)
    (source / "a.txt").write_text("The new text.")
    monkeypatch.setattr(replace, "_RENAME_EXCHANGE", 1 << 20)  # the kernel answers EINVAL
    build(source, out, tokenizer, force=True)
    assert texts(out) == ["The new text."]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_verify_names_the_damaged_file(source: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    build(source, tmp_path / "out", tokenizer)
    moved = (tmp_path / "out").rename(tmp_path / "elsewhere")
    assert verify_index(moved).documents == 1
    with (moved / "text.bin").open("r+b") as stream:
        stream.write(b"t")
        os.fsync(stream.fileno())
    with pytest.raises(IndexFormatError, match=r"text\.bin was altered"):
        verify_index(moved)
