import argparse
import json
import sys
import unicodedata
from pathlib import Path

import pytest

from refdraft.errors import NotFoundError, SourceFormatError
from refdraft.index_builder.cli import add_parser
from refdraft.retriever.tokenizer import Tokenizer


@pytest.fixture
def model(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    (tmp_path / "model").mkdir()
    tokenizer.backend.save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path / "model"


def run(model: Path, *arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers(required=True), default_tokenizer=lambda: model)
    parsed = parser.parse_args(["index", *map(str, arguments)])
    code: int = parsed.run(parsed)
    return code


def test_build_then_info_search_verify(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "otter.md").write_text("# Otters\n\nThey hold hands while they sleep.")
    (tmp_path / "docs" / "bad.txt").write_bytes(b"\xff")
    out = tmp_path / "out"
    assert run(model, "build", tmp_path / "docs", "--out", out) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"skipped {tmp_path}/docs/bad.txt:1: not UTF-8 (byte 0xff)" in printed.err
    assert "1 documents, 1 passages" in printed.err.splitlines()[-1]

    assert run(model, "info", out, "--json") == 0
    info = json.loads(capsys.readouterr().out)
    assert (info["documents"], info["passages"], info["passage_tokens"]) == (1, 1, 256)
    assert run(model, "info", out) == 0
    assert "bm25, dense, hybrid" in capsys.readouterr().out

    assert run(model, "search", out, "sleeping otters", "--json", "--top-k", "3") == 0
    hit = json.loads(capsys.readouterr().out)
    assert (hit["document_id"], hit["title"], hit["start"]) == ("otter.md", "Otters", 0)
    assert run(model, "search", out, "hands", "--mode", "bm25") == 0
    assert "otter.md [0:" in capsys.readouterr().out
    assert run(model, "search", out, "unheard-of", "--mode", "bm25") == 0
    assert "nothing found" in capsys.readouterr().err

    assert run(model, "verify", out) == 0
    assert "whole" in capsys.readouterr().out


def test_on_error_fail_and_quiet(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("Fine.")
    (tmp_path / "b.txt").write_bytes(b"\xff")
    sources = (tmp_path / "a.txt", tmp_path / "b.txt")
    with pytest.raises(SourceFormatError, match=r"^\S+b\.txt:1: not UTF-8 [^:]*--on-error skip[^:]*$"):
        run(model, "build", *sources, "--out", tmp_path / "out", "--on-error", "fail", "--quiet", "--no-dense")
    assert not (tmp_path / "out").exists()
    assert run(model, "build", sources[0], "--out", tmp_path / "out", "--quiet", "--no-dense") == 0
    assert capsys.readouterr() == ("", "")


def test_the_tokenizer_named_is_the_one_used(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Fine.")
    with pytest.raises(NotFoundError, match=r"tokenizer\.json"):
        run(model, "build", tmp_path / "a.txt", "--out", tmp_path / "out", "--tokenizer", tmp_path / "none")


@pytest.mark.parametrize("arguments", [("--out", "", "docs"), ("--out", "out", ""), ("--out", "out", "docs", "")])
def test_an_empty_path_is_not_the_current_folder(
    arguments: tuple[str, ...], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(model, "build", *arguments)
    assert exit_.value.code == 2
    assert "is empty: name a file or folder" in capsys.readouterr().err


def test_columns_reach_the_reader(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"key": "k1", "body": "Fine.", "head": "H", "a": 1, "b": 2}))
    columns = ["--id-column", "key", "--text-column", "body", "--title-column", "head"]
    metadata = ["--metadata-column", "a", "--metadata-column", "b"]
    out = tmp_path / "out"
    assert run(model, "build", tmp_path / "a.jsonl", "--out", out, "--no-dense", "--quiet", *columns, *metadata) == 0
    assert run(model, "search", out, "fine", "--json") == 0
    hit = json.loads(capsys.readouterr().out)
    assert (hit["document_id"], hit["title"], hit["metadata"]) == ("k1", "H", {"a": "1", "b": "2"})


def test_control_sequences_reach_a_pipe_but_no_terminal(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"id": "\x1b]0;d\x07", "title": "\x9b2J", "text": "an otter\x1b[2J é 🦦"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    out = tmp_path / "out"
    assert run(model, "build", tmp_path / "a.jsonl", "--out", out, "--no-dense", "--quiet") == 0
    assert run(model, "search", out, "otter") == 0
    piped = capsys.readouterr().out
    assert all(part in piped for part in row.values())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for options in ([], ["--json"]):
        assert run(model, "search", out, "otter", *options) == 0
        shown = capsys.readouterr().out
        assert not any(unicodedata.category(character) == "Cc" for character in shown.replace("\n", ""))
        assert "é 🦦" in shown
