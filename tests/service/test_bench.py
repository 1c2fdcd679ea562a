"""`refdraft bench drafts` as a person runs it, on traces that can be counted by hand."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from refdraft.service.cli import main

TRACE = {
    "prompt": "Repeat: the quick brown fox jumps over the lazy dog.",
    "references": [{"id": "a", "text": "A brown fox is a fox that is brown."}],
    "output": " the quick brown fox jumps over the lazy cat",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "traces.jsonl"
    path.write_text("".join(json.dumps(TRACE) + "\n" for _ in range(3)), encoding="utf-8")
    return path


def bench(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["bench", "drafts", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    code, out, err = bench(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    loaded: dict[str, Any] = json.loads(out)
    return loaded


def test_the_report_keeps_its_keys(capsys: pytest.CaptureFixture[str], data: Path, tiny_model_directory: Path) -> None:
    result = report(capsys, "--data", data, "--tokenizer", tiny_model_directory)
    assert result.keys() == {"data", "traces", "output_tokens", "budget", "methods"}
    assert (result["data"], result["traces"], result["budget"]) == (str(data), 3, 16)
    assert result["output_tokens"] % 3 == 0
    assert list(result["methods"]) == ["refdraft", "prompt_lookup", "copy_oracle"]
    for figures in result["methods"].values():
        assert figures.keys() == {"tokens_per_step", "drafted_per_step"}
    assert result["methods"]["copy_oracle"]["tokens_per_step"] >= result["methods"]["refdraft"]["tokens_per_step"] > 2


def test_limit_and_budget_are_kept(capsys: pytest.CaptureFixture[str], data: Path, tiny_model_directory: Path) -> None:
    result = report(capsys, "--data", data, "--tokenizer", tiny_model_directory, "--limit", 1, "--budget", 0)
    assert (result["traces"], result["budget"]) == (1, 0)
    assert all(f == {"tokens_per_step": 1.0, "drafted_per_step": 0.0} for f in result["methods"].values())
    assert report(capsys, "--data", data, "--tokenizer", tiny_model_directory, "--limit", 9)["traces"] == 3


def test_without_json_a_table_is_printed(
    capsys: pytest.CaptureFixture[str], data: Path, tiny_model_directory: Path
) -> None:
    code, out, _ = bench(capsys, "--data", data, "--tokenizer", tiny_model_directory)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["3", "method", "refdraft", "prompt_lookup", "copy_oracle"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "a", "references": [], "output": "b"}\n{"prompt"\n', "traces.jsonl:2: is no"),
        (b'{"prompt": "a", "references": []}\n', "traces.jsonl:1: is no"),
        (b'{"prompt": "a", "references": ["text"], "output": "b"}\n', "traces.jsonl:1: is no"),
        (b'{"prompt": 3, "references": [], "output": "b"}\n', "traces.jsonl:1: is no"),
        (b'{"prompt": "\\ud800", "references": [], "output": "b"}\n', "traces.jsonl:1: is no"),
        (b"[]\n", "traces.jsonl:1: is no"),
        (b"\xff\xfe\n", "traces.jsonl is not UTF-8 (byte 0)"),
        (b"", "traces.jsonl:1: is no"),
    ],
)
def test_broken_traces_are_named_by_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_model_directory: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(content)
    code, out, err = bench(capsys, "--data", path, "--tokenizer", tiny_model_directory)
    assert (code, out) == (1, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_missing_files_are_named(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path, tiny_model_directory: Path
) -> None:
    code, _, err = bench(capsys, "--data", tmp_path / "none.jsonl", "--tokenizer", tiny_model_directory)
    assert (code, "none.jsonl" in err, len(err.splitlines())) == (1, True, 1)
    code, _, err = bench(capsys, "--data", data, "--tokenizer", tmp_path)
    assert (code, "tokenizer.json" in err, len(err.splitlines())) == (1, True, 1)


@pytest.mark.parametrize(("option", "value"), [("--budget", -1), ("--limit", 0), ("--limit", -2)])
def test_a_number_out_of_range_is_refused(
    capsys: pytest.CaptureFixture[str], data: Path, tiny_model_directory: Path, option: str, value: int
) -> None:
    code, _, err = bench(capsys, "--data", data, "--tokenizer", tiny_model_directory, option, value)
    assert code in (1, 2)
    assert f"{option}: must" in err


def test_recorded_generations_are_drafted_better_than_by_prompt_lookup(
    capsys: pytest.CaptureFixture[str], tiny_model_directory: Path
) -> None:
    """A few traces of the project's own data, with whatever tokenizer is at hand: an order, no figures."""
    traces = Path(__file__).parents[3] / "shared" / "data" / "traces" / "rag_llma.jsonl"
    if not os.access(traces, os.R_OK):
        pytest.skip(f"{traces.name} is in ../shared/data only, which is not here")
    methods = report(capsys, "--data", traces, "--tokenizer", tiny_model_directory, "--limit", 5)["methods"]
    speeds = [methods[name]["tokens_per_step"] for name in ("prompt_lookup", "refdraft", "copy_oracle")]
    assert speeds == sorted(speeds)
    assert speeds[0] > 1
