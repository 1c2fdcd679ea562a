"""`refdraft verify`: it passes what is lossless, finds what is not, and goes on where it was stopped."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refdraft.decoder.sampler import Sampler
from refdraft.service import verification
from refdraft.service.cli import main
from refdraft.service.verify import Prompt, _balanced

Verify = Callable[..., int]


@pytest.fixture
def verify(tiny_model_directory: Path) -> Verify:
    """Run the command on the tiny model, 12 tokens each unless told otherwise."""

    def run(*options: str) -> int:
        return main(["verify", "--model", str(tiny_model_directory), "--max-tokens", "12", *options])

    return run


def report(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def without_drafts(found: dict[str, Any]) -> dict[str, Any]:
    """A report but for what was drafted, which depends on what the odds have learned."""
    runs = {
        name: {key: value for key, value in run.items() if key not in ("steps", "drafted", "accepted")}
        for name, run in found["runs"].items()
    }
    return found | {"runs": runs}


@pytest.mark.parametrize("numerics", ["fast", "strict"])
@pytest.mark.parametrize("temperature", ["0", "0.9"])
def test_lossless_decoding_passes(
    verify: Verify, capsys: pytest.CaptureFixture[str], temperature: str, numerics: str
) -> None:
    assert verify("--temperature", temperature, "--numerics", numerics, "--json") == 0
    found = report(capsys)
    assert found["differences"] == []
    assert found["prompts"] == 8
    plain, alone, batch = (found["runs"][name] for name in ("plain", "alone", "batch"))
    assert plain["drafted"] == 0
    for run in (alone, batch):
        assert run["identical"] == 8
        assert numerics == "fast" or run["same_bits"] == 8
        assert run["tokens"] == plain["tokens"]
        assert run["steps"] < plain["steps"]
        assert 0 < run["accepted"] < run["drafted"]


def test_a_person_is_told_in_a_few_lines(verify: Verify, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("--limit", "2", "--only", "alone") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "float32, numerics fast: 2 prompts, at most 12 tokens each, greedy" in lines[0]
    assert "same bits" in lines[1]
    assert [line.split()[0] for line in lines[2:4]] == ["plain", "alone"]
    assert lines[-1] == "all outputs are identical"


def test_a_decoder_that_is_not_lossless_is_found_with_both_logits(
    verify: Verify, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler that, wherever drafts are verified, takes the second best token at one position."""
    honest, drafting = Sampler.choose, [False]

    def choose(self: Sampler, logits: NDArray[np.float32]) -> int:
        token = honest(self, logits)
        written = self._position - self._first
        return int(np.argsort(-logits)[1]) if drafting[0] and written == 7 else token

    request = verification.Verification._request

    def watched(self: Any, *args: Any) -> Any:
        made = request(self, *args)
        drafting[0] = made.max_draft_tokens > 0
        return made

    monkeypatch.setattr(Sampler, "choose", choose)
    monkeypatch.setattr(verification.Verification, "_request", watched)
    assert verify("--limit", "2", "--only", "alone", "--json") == 1
    found = report(capsys)
    assert found["runs"]["alone"]["identical"] == 0
    assert len(found["differences"]) == 2
    for difference in found["differences"]:
        assert difference["token"] == 7
        assert difference["plain"] != difference["drafted"]
        ours, others = difference["plain_logits"]
        assert ours > others
        assert difference["drafted_logits"] == pytest.approx([ours, others], abs=1e-3)
    drafting[0] = False
    assert verify("--limit", "2", "--only", "alone") == 1
    out = capsys.readouterr().out
    assert "prompt 1, alone, output token 8: plain chose" in out
    assert out.endswith("some outputs differ\n")


def test_strict_numerics_is_held_to_its_bits(
    verify: Verify, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits that move by one unit in the last place with every call choose the same tokens nearly always."""
    log_probability, calls = Sampler.logprob, [0]

    def logprob(self: Sampler, logits: NDArray[np.float32], token: int) -> Any:
        calls[0] += 1
        return log_probability(self, np.nextafter(logits, np.float32(calls[0] % 2)), token)

    monkeypatch.setattr(Sampler, "logprob", logprob)
    options = ("--limit", "3", "--max-tokens", "11", "--only", "alone")
    assert verify("--numerics", "strict", *options) == 1
    assert capsys.readouterr().out.endswith("all outputs are identical, but not all logits are\n")
    assert verify("--numerics", "fast", *options) == 0


def test_a_stopped_run_goes_on(
    verify: Verify, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tmp_path / "runs" / "records.jsonl"
    assert verify("--numerics", "strict", "--records", str(records), "--json") == 0
    whole, lines = report(capsys), records.read_text().splitlines(keepends=True)
    records.write_text("".join(lines[:12]))
    assert verify("--numerics", "strict", "--records", str(records), "--json") == 0
    assert without_drafts(report(capsys)) == without_drafts(whole)
    again = records.read_text().splitlines(keepends=True)
    assert again[:12] == lines[:12], "what was done is not done again"
    assert len(again) == len(lines)

    def step(self: Any) -> None:
        raise AssertionError("nothing is left to decode")

    monkeypatch.setattr("refdraft.decoder.engine.Engine.step", step)
    assert verify("--numerics", "strict", "--records", str(records), "--json") == 0
    assert without_drafts(report(capsys)) == without_drafts(whole)


def test_a_line_that_was_cut_off_is_done_again(
    verify: Verify, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    records = tmp_path / "records.jsonl"
    assert verify("--limit", "2", "--numerics", "strict", "--records", str(records), "--json") == 0
    whole, text = report(capsys), records.read_text()
    records.write_text(text[:-25])
    assert verify("--limit", "2", "--numerics", "strict", "--records", str(records), "--json") == 0
    assert without_drafts(report(capsys)) == without_drafts(whole)
    assert sorted(records.read_text().splitlines()) == sorted(text.splitlines())


def test_records_of_other_settings_are_refused(
    verify: Verify, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    records = tmp_path / "records.jsonl"
    assert verify("--limit", "1", "--records", str(records)) == 0
    assert verify("--limit", "1", "--records", str(records), "--temperature", "1") == 1
    assert "records.jsonl holds another run; name another file" in capsys.readouterr().err
    records.write_text("no JSON at all\n")
    assert verify("--limit", "1", "--records", str(records)) == 1
    assert "records.jsonl holds another run; name another file" in capsys.readouterr().err


def test_prompts_come_from_a_file(verify: Verify, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    rows = [{"prompt": "One\u2028line"}, {"question_id": 7, "turns": ["Two", "Three"]}, {"prompt": "long " * 5000}]
    data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    assert verify("--data", str(data), "--json") == 0
    found = report(capsys)
    assert (found["prompts"], found["too_long"]) == (2, 1)


@pytest.mark.parametrize("line", ["{}", "no JSON", '{"prompt": ""}', '{"prompt": 5}', '{"turns": []}', "[]"])
def test_a_line_that_is_no_prompt_is_named(
    verify: Verify, capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str
) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    assert verify("--data", str(data)) == 1
    error = capsys.readouterr().err
    assert f"{data}:2" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "options", [["--batch", "0"], ["--limit", "0"], ["--temperature", "-1"], ["--top-p", "0"], ["--max-tokens", "0"]]
)
def test_impossible_options_are_a_usage_error(
    verify: Verify, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        verify(*options)
    assert caught.value.code == 2
    assert f"argument {options[0]}" in capsys.readouterr().err


def test_a_limit_balances_the_categories() -> None:
    prompts = [Prompt(f"{category}{number}", "text", category) for category in "aab" for number in range(3)]
    assert [prompt.name for prompt in _balanced(prompts, 5)] == ["a0", "b0", "a1", "b1", "a2"]
    assert _balanced(prompts, None) == prompts
