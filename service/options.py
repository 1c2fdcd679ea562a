"""Command-line options of everything that loads a target: `generate`, `serve`, `demo`, `bench`.

Only what was given is passed on, so that the defaults are PipelineConfig's own.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refdraft.errors import InvalidRequestError

if TYPE_CHECKING:
    from refdraft.service.config import PipelineConfig

_OPTIONS: dict[str, dict[str, Any]] = {
    "slots": {"type": int, "metavar": "N", "help": "requests decoded at once"},
    "queue_limit": {"type": int, "metavar": "N", "help": "requests that may wait for a slot"},
    "context_limit": {"type": int, "metavar": "TOKENS", "help": "prompt and output together"},
    "dtype": {"metavar": "TYPE", "help": "type of the weights, such as float32 or bfloat16"},
    "device": {"metavar": "DEVICE", "help": "where the target runs, such as cpu or cuda"},
    "threads": {"type": int, "metavar": "N", "help": "CPU threads"},
    "draft_model": {
        "metavar": "PATH|NAME",
        "help": "a small model with the target's tokenizer, asked too what may come next; default: none",
    },
    "history_tokens": {
        "type": int,
        "metavar": "N",
        "help": "tokens of past outputs that all callers' answers are drafted from; default: 0",
    },
    "numerics": {
        "choices": ("auto", "strict", "fast"),
        "help": "strict: logits bit-identical with and without drafts; fast: the cheapest shape",
    },
}


def add_model_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add --model and the named PipelineConfig options, and `usage_error`, which exits with 2."""
    parser.set_defaults(usage_error=parser.error)
    parser.add_argument("--model", metavar="PATH|NAME", help="the target; default: the embedded model")
    for name in names:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, default=argparse.SUPPRESS, **_OPTIONS[name])


def pipeline_config(args: argparse.Namespace) -> "PipelineConfig":
    """Return the configuration that the options describe; one that cannot be is a usage error."""
    from refdraft.service.config import PipelineConfig

    try:
        config = PipelineConfig(**{name: getattr(args, name) for name in _OPTIONS if hasattr(args, name)})
    except InvalidRequestError as error:
        option = f"--{error.field.replace('_', '-')}"
        args.usage_error(f"argument {option}: {error.reason}")
    return config


def check_indexes(directories: Iterable[Path]) -> None:
    """Find at once, not after a model is loaded, that a directory holds no whole index.

    Raises:
        NotFoundError: a directory does not exist.
        IndexFormatError: a directory is not an index, or files are missing or cut.
    """
    from refdraft.retriever.manifest import Manifest

    for directory in directories:
        Manifest.read(directory).check_sizes(directory)
