"""`refdraft bench drafts` as a person runs it, on traces that can be counted by hand."""

import json
import os
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from refdraft.service.bench import METHODS, OURS
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


def runs(data: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    return {(run["method"], run["budget"]): run for run in data["runs"]}


def test_the_report_keeps_its_keys(capsys: pytest.CaptureFixture[str], data: Path, tiny_model_directory: Path) -> None:
    result = report(capsys, "--data", data, "--tokenizer", tiny_model_directory)
    assert result.keys() == {"part", "data"}
    (file,) = result["data"]
    assert file.keys() == {"file", "traces", "output_tokens", "runs"}
    assert (file["file"], file["traces"], result["part"]) == ("traces.jsonl", 3, "all")
    assert file["output_tokens"] % 3 == 0
    assert [run["method"] for run in file["runs"]] == list(METHODS)
    for run in file["runs"]:
        figures = {"tokens", "steps", "tokens_per_step", "drafted_per_step", "acceptance", "seconds_per_step"}
        learned = {"reliability"} if run["method"] in OURS else set()
        assert run.keys() == {"method", "budget"} | figures | learned
        assert run["budget"] == 16
        assert run["tokens"] == file["output_tokens"] - 3  # the prefill's are not counted
        assert run["tokens_per_step"] == round(run["tokens"] / run["steps"], 4)
    best = runs(file)
    assert best["copy_oracle", 16]["tokens_per_step"] >= best["prompt_lookup", 16]["tokens_per_step"] > 2
    assert best["refdraft", 16]["tokens_per_step"] > 2


def test_reliability_tells_of_every_drafted_node(
    capsys: pytest.CaptureFixture[str], data: Path, tiny_model_directory: Path
) -> None:
    (file,) = report(capsys, "--data", data, "--tokenizer", tiny_model_directory, "--methods", "refdraft")["data"]
    (run,) = file["runs"]
    assert {"depth", "low", "high", "nodes", "predicted", "observed"} == run["reliability"][0].keys()
    nodes = sum(bin_["nodes"] for bin_ in run["reliability"])
    assert nodes == round(run["drafted_per_step"] * run["steps"])


def test_files_budgets_and_methods_are_crossed(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path, tiny_model_directory: Path
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_bytes(data.read_bytes())
    options = ("--tokenizer", tiny_model_directory, "--budget", "0,4", "--methods", "rest,llma")
    result = report(capsys, "--data", data, other, *options)
    assert [file["file"] for file in result["data"]] == ["traces.jsonl", "other.jsonl"]
    for file in result["data"]:
        assert list(runs(file)) == [("rest", 0), ("llma", 0), ("rest", 4), ("llma", 4)]
        assert runs(file)["rest", 0]["drafted_per_step"] == 0
        assert runs(file)["rest", 0]["tokens_per_step"] == 1
        assert 0 < runs(file)["rest", 4]["drafted_per_step"] <= 4


def test_parts_are_halves_and_limits_cut_them(
    capsys: pytest.CaptureFixture[str], data: Path, tiny_model_directory: Path
) -> None:
    def traces(*options: object) -> int:
        common = ("--tokenizer", tiny_model_directory, "--methods", "llma")
        number: int = report(capsys, "--data", data, *common, *options)["data"][0]["traces"]
        return number

    assert (traces("--part", "first"), traces("--part", "second"), traces("--part", "all")) == (2, 1, 3)
    assert (traces("--limit", 1), traces("--limit", 9), traces("--part", "second", "--limit", 2)) == (1, 3, 1)


def test_without_json_a_table_for_each_file_is_printed(
    capsys: pytest.CaptureFixture[str], data: Path, tiny_model_directory: Path
) -> None:
    methods = ("--methods", "refdraft,prompt_lookup", "--budget", "4,8")
    code, out, _ = bench(capsys, "--data", data, data, "--tokenizer", tiny_model_directory, *methods)
    assert code == 0
    tables = [table.splitlines() for table in out.split("\n\n")]
    assert len(tables) == 2
    for head, columns, *rows in tables:
        assert head.startswith("traces.jsonl: 3 traces")
        assert columns.split()[-4:] == ["budget", "4", "budget", "8"]
        assert [row.split()[0] for row in rows] == ["refdraft", "prompt_lookup"]
        assert rows[1].count("(1.00)") == 2


def test_pictures_are_drawn(
    capsys: pytest.CaptureFixture[str], data: Path, tmp_path: Path, tiny_model_directory: Path
) -> None:
    pytest.importorskip("matplotlib")
    plot, reliability = tmp_path / "plot.svg", tmp_path / "reliability.svg"
    options = ("--tokenizer", tiny_model_directory, "--budget", "4,8", "--methods", "refdraft,rest,copy_oracle")
    report(capsys, "--data", data, data, *options, "--plot", plot, "--reliability", reliability)
    for word in ("refdraft", "rest", "copy_oracle", "traces (3 traces)", "tokens a step"):
        assert word in plot.read_text(encoding="utf-8")
    for word in ("depth 1", "predicted survival"):
        assert word in reliability.read_text(encoding="utf-8")
    for picture in (plot, reliability):
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_a_picture_that_cannot_be_drawn_is_one_line(
    capsys: pytest.CaptureFixture[str],
    data: Path,
    tmp_path: Path,
    tiny_model_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ("--data", data, "--tokenizer", tiny_model_directory)
    code, _, err = bench(capsys, *options, "--methods", "rest", "--reliability", tmp_path / "r.svg")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "--reliability: needs one of refdraft" in err
    code, _, err = bench(capsys, *options, "--methods", "rest", "--plot", tmp_path / "none" / "p.svg")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "cannot write" in err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = bench(capsys, *options, "--plot", tmp_path / "p.svg")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "pip install 'refdraft[bench]'" in err


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


@pytest.mark.parametrize(
    ("option", "value"),
    [("--budget", "-1"), ("--budget", "8,"), ("--budget", "many"), ("--methods", "magic"), ("--methods", "")],
)
def test_a_list_of_something_else_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], data: Path, option: str, value: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", "drafts", "--data", str(data), f"{option}={value}"])
    assert caught.value.code == 2
    assert f"{option}: must" in capsys.readouterr().err


@pytest.mark.parametrize("value", [0, -2])
def test_a_limit_out_of_range_is_refused(
    capsys: pytest.CaptureFixture[str], data: Path, tiny_model_directory: Path, value: int
) -> None:
    code, _, err = bench(capsys, "--data", data, "--tokenizer", tiny_model_directory, "--limit", value)
    assert code == 1
    assert "--limit: must" in err


def test_recorded_generations_are_drafted_better_than_by_prompt_lookup(
    capsys: pytest.CaptureFixture[str], tiny_model_directory: Path
) -> None:
    """A few traces of the project's own data, with whatever tokenizer is at hand: an order, no figures."""
    traces = Path(__file__).parents[3] / "shared" / "data" / "traces" / "rag_llma.jsonl"
    if not os.access(traces, os.R_OK):
        pytest.skip(f"{traces.name} is in ../shared/data only, which is not here")
    (file,) = report(capsys, "--data", traces, "--tokenizer", tiny_model_directory, "--limit", 5)["data"]
    speeds = [runs(file)[name, 16]["tokens_per_step"] for name in ("prompt_lookup", "refdraft", "copy_oracle")]
    assert speeds == sorted(speeds)
    assert speeds[0] > 1
