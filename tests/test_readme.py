"""What README tells people to type still exists; its first two commands are run by .ci/run."""

import re
import shlex
from pathlib import Path

import pytest

import refdraft
from refdraft.service.cli import _parser

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith(".venv/bin/refdraft")
]
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_are_commands_and_snippets_to_check() -> None:
    assert len(COMMANDS) >= 8
    assert len(SNIPPETS) >= 2


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_understood(command: str) -> None:
    args = _parser().parse_args(shlex.split(command)[1:])
    assert callable(args.run)


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_every_snippet_compiles_and_imports_what_there_is(snippet: str) -> None:
    compile(snippet, "README.md", "exec")
    for names in re.findall(r"^from refdraft import (.+)$", snippet, re.MULTILINE):
        for name in names.split(", "):
            assert hasattr(refdraft, name)


def test_ci_runs_the_first_two_commands() -> None:
    script = (Path(__file__).parent.parent / ".ci" / "run").read_text(encoding="utf-8").replace(" --quiet", "")
    first, second = re.findall(r"```sh\n(.*?)\n```", README, re.DOTALL)[:2]
    for part in (*first.split(" && "), *second.split(" && ")):
        assert part in script


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (Path(__file__).parent.parent / target).exists(), target
