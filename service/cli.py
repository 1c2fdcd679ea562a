"""The `refdraft` command: one file a command, one place for errors and exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 141 nobody reads the output. Command modules
import what is heavy when they run, so that `refdraft --help` is quick and works without the serve extra.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from refdraft.errors import RefdraftError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = _parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if args.debug else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        code: int = args.run(args)
        sys.stdout.flush()  # here, where it can still be told that nobody reads
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # As in `refdraft generate | head`: what is left goes nowhere, or Python would complain of it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if args.debug:
            raise
        print(f"refdraft: {_explanation(error)}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    import refdraft
    from refdraft.index_builder import cli as index
    from refdraft.service import bench, demo, generate, serve, verify

    parser = argparse.ArgumentParser(
        prog="refdraft",
        description="An LLM's own answer, sooner: spans of reference text are copied as drafts and verified.",
    )
    parser.add_argument("--version", action="version", version=f"refdraft {refdraft.__version__}")
    parser.add_argument("--debug", action="store_true", help="log everything and show tracebacks")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for command in (demo, generate, serve, verify, bench):
        command.add_parser(commands)
    index.add_parser(commands, default_tokenizer=_default_model_directory)
    _add_model_parser(commands)
    return parser


def _add_model_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("model", help="the embedded default model")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    fetch = actions.add_parser("fetch", help="make it ready now and print its folder")
    fetch.set_defaults(run=_fetch)


def _fetch(args: argparse.Namespace) -> int:
    print(_default_model_directory())
    return 0


def _default_model_directory() -> Path:
    from refdraft.service.default_model import default_model_directory

    return default_model_directory()


def _explanation(error: Exception) -> str:
    if isinstance(error, RefdraftError):
        return str(error)
    if isinstance(error, OSError) and error.filename:  # a full disk, a folder that may not be written
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("refdraft"):
        return (
            f"this command needs {error.name}; install the extra: pip install 'refdraft[serve]', "
            "or -e '.[serve]' in a checkout"
        )
    return f"unexpected {type(error).__name__}: {error}; `refdraft --debug ...` shows where"
