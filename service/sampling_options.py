"""Command-line options of what a request may ask of the target's choice: sampling, stops, structure.

Only what was given is passed on, so that the defaults are Sampling's own.
"""

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from refdraft.service.types import Sampling, Structure


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be ID=BIAS, such as 42=-1.5, not {text!r}") from None


# By field of Sampling: flag and what argparse is told of it.
_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "max_tokens": ("--max-tokens", {"type": int, "metavar": "N", "help": "most tokens to write"}),
    "min_tokens": ("--min-tokens", {"type": int, "metavar": "N", "help": "tokens before anything may end the answer"}),
    "n": ("--samples", {"type": int, "metavar": "N", "help": "answers to draw, each with the next seed"}),
    "seed": ("--seed", {"type": int, "metavar": "N", "help": "default: drawn, and told at the end"}),
    "temperature": ("--temperature", {"type": float, "metavar": "T", "help": "0 is greedy"}),
    "top_k": (
        "--sampling-top-k",
        {
            "type": int,
            "metavar": "N",
            "help": "sample from the N likeliest tokens (for passages see --top-k); 0 for all",
        },
    ),
    "top_p": ("--top-p", {"type": float, "metavar": "P", "help": "sample from this probability mass"}),
    "min_p": (
        "--min-p",
        {"type": float, "metavar": "P", "help": "leave out what is less than P times as likely as the likeliest"},
    ),
    "repetition_penalty": (
        "--repetition-penalty",
        {"type": float, "metavar": "X", "help": "above 1: tokens of prompt and answer become less likely"},
    ),
    "presence_penalty": (
        "--presence-penalty",
        {"type": float, "metavar": "X", "help": "subtracted from the logits of the answer's tokens"},
    ),
    "frequency_penalty": (
        "--frequency-penalty",
        {"type": float, "metavar": "X", "help": "the same, as often as each occurs in the answer"},
    ),
    "logit_bias": (
        "--logit-bias",
        {"type": _bias, "action": "append", "metavar": "ID=BIAS", "help": "added to this token's logit; repeatable"},
    ),
    "bad_words": (
        "--bad-word",
        {"action": "append", "metavar": "TEXT", "help": "never write these tokens; repeatable"},
    ),
    "allowed_token_ids": (
        "--allowed-token",
        {"type": int, "action": "append", "metavar": "ID", "help": "write no other tokens; repeatable"},
    ),
    "stop": ("--stop", {"action": "append", "metavar": "TEXT", "help": "end before this text; repeatable"}),
    "stop_token_ids": (
        "--stop-token",
        {"type": int, "action": "append", "metavar": "ID", "help": "end with this token; repeatable"},
    ),
    "ignore_eos": ("--ignore-eos", {"action": "store_true", "help": "go on past the end-of-sequence token"}),
    "logprobs": (
        "--logprobs",
        {
            "type": int,
            "metavar": "K",
            "help": "with --json: each token's log-probability and the K likeliest; 0 for its own alone",
        },
    ),
}

# Which option to name where a field of the request is refused.
FLAGS = {f"sampling.{name}": flag for name, (flag, _) in _OPTIONS.items()}


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field of Sampling."""
    defaults = {field.name: field.default for field in fields(Sampling)}
    for name, (flag, options) in _OPTIONS.items():
        default = defaults[name]
        told = f"; default: {default}" if isinstance(default, int | float) and not isinstance(default, bool) else ""
        parser.add_argument(
            flag, dest=_destination(name), default=argparse.SUPPRESS, **options | {"help": options["help"] + told}
        )


def sampling(args: argparse.Namespace) -> Sampling:
    """Return what the options describe."""
    given = {name: getattr(args, _destination(name)) for name in _OPTIONS if hasattr(args, _destination(name))}
    if "logit_bias" in given:
        given["logit_bias"] = dict(given["logit_bias"])
    return Sampling(**given)


def add_structure_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what the answer must look like, of which one may be given."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--json-object", action="store_true", help="answer with a JSON object")
    group.add_argument("--json-schema", type=Path, metavar="FILE", help="answer with JSON that this schema describes")
    group.add_argument("--regex", metavar="PATTERN", help="answer with text that matches as a whole")
    group.add_argument(
        "--grammar", type=Path, metavar="FILE", help="answer with text of this grammar, in Lark's notation"
    )


def structure(args: argparse.Namespace, read: Callable[[Path], str]) -> Structure | None:
    """Return what the options describe; `read` gives the text of a file."""
    if args.json_object:
        return Structure(kind="json_object")
    if args.json_schema is not None:
        return Structure(kind="json_schema", source=read(args.json_schema))
    if args.regex is not None:
        return Structure(kind="regex", source=args.regex)
    if args.grammar is not None:
        return Structure(kind="lark", source=read(args.grammar))
    return None


def _destination(field: str) -> str:
    return f"sampling_{field}"  # top_k alone is the passages'
