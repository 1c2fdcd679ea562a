"""`refdraft serve` and `refdraft generate` on a tiny real model, as processes and in-process."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refdraft.service.cli import main

COMMAND = [sys.executable, "-c", "import sys; from refdraft.service.cli import main; sys.exit(main())"]
TEXT = "The if statement is used for conditional execution. "


@pytest.fixture(scope="module")
def server(tiny_model_directory: Path) -> Iterator[str]:
    """The address of a serving process, which must end well on SIGTERM."""
    arguments = ["serve", "--model", str(tiny_model_directory), "--port", "0", "--slots", "2", "--threads", "1"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"refdraft is serving {tiny_model_directory.name} on 127.0.0.1:")
        yield line.split()[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def generate(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["generate", "--prompt", TEXT * 4, "--max-tokens", "24", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_server_and_a_pipeline_here_give_the_same_answer(
    server: str, tiny_model_directory: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    reference = tmp_path / "manual.txt"
    reference.write_text(TEXT, encoding="utf-8")
    options = ["--temperature", "0.5", "--seed", "7", "--reference", str(reference)]
    here = generate(capsys, "--model", str(tiny_model_directory), "--threads", "1", *options)
    there = generate(capsys, "--server", server, *options)
    plain = generate(capsys, "--server", server, "--no-draft", *options)
    assert here["token_ids"] == there["token_ids"] == plain["token_ids"]
    assert here["text"] == there["text"] == plain["text"]
    assert plain["drafting"]["drafted_tokens"] == 0


def test_a_port_in_use_is_one_line_before_a_model_is_loaded(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--model", "no-such-model", "--port", port]) == 1
    assert capfd.readouterr().err.splitlines()[-1] == (
        f"refdraft: cannot listen on 127.0.0.1, port {port}: Address already in use; choose another --port or --host"
    )


def test_a_model_that_does_not_exist_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["generate", "--prompt", "a", "--model", str(tmp_path / "moon")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("refdraft: ")
    assert "moon" in error
    assert error.count("\n") == 1
