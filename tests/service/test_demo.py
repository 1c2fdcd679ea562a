"""The demo as a stranger runs it, on the tiny model and a part of the manual."""

import pydoc_data.topics
import re
from dataclasses import replace
from pathlib import Path

import pytest

from refdraft.service import demo
from refdraft.service.cli import main
from refdraft.service.types import Completion, DraftingStatistics, Usage

FIGURES = re.compile(
    r"^  (?P<per_step>\d+\.\d\d) tokens per step, plain (?P<plain>\d+\.\d\d) s, drafted (?P<drafted>\d+\.\d\d) s, "
    r"ratio (?P<ratio>\d+\.\d\d), identical: (?P<identical>yes|NO)$",
    re.MULTILINE,
)


def pair(drafted_ids: tuple[int, ...]) -> demo.Pair:
    plain = Completion(
        text="\x1b[2Jab",
        token_ids=(1, 2, 3),
        finish_reason="length",
        usage=Usage(prompt_tokens=1, completion_tokens=3),
        drafting=DraftingStatistics(steps=1),
    )
    task = demo.make_tasks(8)[0]
    return demo.Pair(task=task, plain=plain, drafted=replace(plain, token_ids=drafted_ids), plain_s=1.0, drafted_s=2.0)


def test_every_answer_is_the_same_with_drafts(
    tiny_model_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some = {name: pydoc_data.topics.topics[name] for name in ("break", "pass", "yield", "lambda")}
    monkeypatch.setattr(pydoc_data.topics, "topics", some)
    arguments = ["demo", "--model", str(tiny_model_directory), "--threads", "1", "--max-tokens", "12"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    figures = list(FIGURES.finditer(printed))
    assert len(figures) == len(demo.make_tasks(12))
    assert {match["identical"] for match in figures} == {"yes"}
    assert all(float(match["per_step"]) >= 1 and float(match["drafted"]) > 0 for match in figures)
    assert "4 documents" in printed
    assert "\x1b" not in printed
    assert printed.splitlines()[-1].split()[0] == "all"


def test_a_changed_answer_is_loud_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.conclude([pair((1, 2, 3))]) == 0
    assert capsys.readouterr().err == ""
    assert demo.conclude([pair((1, 2, 3)), pair((1, 9, 3))]) == 1
    assert "DRAFTING CHANGED THE OUTPUT" in capsys.readouterr().err


def test_a_slower_draft_is_told_as_it_is() -> None:
    assert "plain 1.00 s, drafted 2.00 s, ratio 0.50" in demo.describe(pair((1, 2, 3)), colour=False)
    assert demo.summary([pair((1, 2, 3))] * 2).splitlines()[-1].split()[-5:] == ["2.00", "2.00", "4.00", "0.50", "yes"]


@pytest.mark.parametrize("colour", [False, True])
def test_control_sequences_stay_off_the_terminal(colour: bool) -> None:
    assert "\x1b[2J" not in demo.describe(pair((1, 2, 3)), colour=colour)


def test_bad_values_are_refused_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--model", "no-such-model", "--max-tokens", "0"]) == 1
    assert capsys.readouterr().err.startswith("refdraft: sampling.max_tokens: ")
