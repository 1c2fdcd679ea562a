"""`refdraft generate`: one answer, from a server or from a target loaded here."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from refdraft.controls import neutral
from refdraft.errors import InvalidRequestError, NotFoundError
from refdraft.service import sampling_options
from refdraft.service.options import add_model_options, check_indexes, pipeline_config
from refdraft.service.terminal import Painter, figures, wants_colour
from refdraft.service.types import (
    SEARCH_MODES,
    Completion,
    Delta,
    Drafting,
    GenerateRequest,
    Placement,
    Reference,
    Retrieval,
)
from refdraft.service.validation import NO_LIMITS, Limits, validate

Event = Delta | Completion

_PLACEMENTS: dict[str, Placement] = {"prompt": "prompt", "draft": "draft_only"}

# Which option to name where a field of the request is refused.
_OPTIONS = sampling_options.FLAGS | {
    "drafting.max_draft_tokens": "--max-draft-tokens",
    "retrieval.index": "--index",
    "retrieval.top_k": "--top-k",
}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `generate` command."""
    parser = commands.add_parser("generate", help="answer a prompt", description="Answer a prompt.")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="one user turn")
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="the same, from a UTF-8 file")
    parser.add_argument("--raw", action="store_true", help="do not put the prompt through the chat template")
    _add_source_options(parser)
    sampling_options.add_sampling_options(parser)
    sampling_options.add_structure_options(parser)
    parser.add_argument("--no-draft", action="store_true", help="decode plainly")
    parser.add_argument(
        "--max-draft-tokens",
        type=int,
        default=Drafting().max_draft_tokens,
        metavar="N",
        help="most draft tokens a step; default: %(default)s",
    )
    add_model_options(parser, "dtype", "threads")
    parser.add_argument("--server", metavar="HOST:PORT", help="ask a running server; default: in-process")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object at the end, one line for each sample"
    )
    parser.add_argument("--no-color", action="store_true", help="do not colour copied spans")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer and print."""
    _check_usage(args)
    request = _request(args)
    _check_values(args, request)
    show = _print_json if args.json else _screen(args, request).show
    if args.server is not None:
        _ask_server(args.server, request, show)
    else:
        _ask_pipeline(args, request, show)
    return 0


def _check_usage(args: argparse.Namespace) -> None:
    """Refuse options that say nothing together."""
    if args.server is not None and (args.model or hasattr(args, "dtype") or hasattr(args, "threads")):
        args.usage_error("--server has its own model: leave out --model, --dtype and --threads")
    if args.server == "":
        args.usage_error("--server needs an address, HOST:PORT")
    if args.prompt == "":
        args.usage_error("argument --prompt: is empty")
    if args.regex == "":
        args.usage_error("argument --regex: is empty")
    if args.index is None and (args.top_k is not None or args.mode or args.passages or args.corpus):
        args.usage_error("--top-k, --mode, --passages and --corpus are about an index: add --index")
    if hasattr(args, "sampling_logprobs") and not args.json:
        args.usage_error("--logprobs are printed with the tokens: add --json")


def _check_values(args: argparse.Namespace, request: GenerateRequest) -> None:
    """Refuse bad values at once, not after a model is loaded; those of an option as argparse would."""
    try:
        validate(request, Limits() if args.server is None else NO_LIMITS)
    except InvalidRequestError as error:
        option = _OPTIONS.get(error.field.partition("[")[0])  # as in "sampling.stop_token_ids[1]"
        if option is None:
            raise
        args.usage_error(f"argument {option}: {error.reason}")


def _ask_server(address: str, request: GenerateRequest, show: Callable[[Event], None]) -> None:
    from refdraft.service.client import Client

    with Client(address) as client:
        for event in client.stream(request):
            show(event)


def _ask_pipeline(args: argparse.Namespace, request: GenerateRequest, show: Callable[[Event], None]) -> None:
    config = pipeline_config(args)
    indexes = {args.index: Path(args.index)} if args.index else {}
    check_indexes(indexes.values())
    from refdraft.service.pipeline import Pipeline  # slow to import, hence not before

    with Pipeline.load(args.model, indexes=indexes, config=config) as pipeline:

        async def stream() -> None:
            async with aclosing(pipeline.stream(request)) as events:
                async for event in events:
                    show(event)

        asyncio.run(stream())


class _Screen:
    """Prints an answer as it comes, then the legend and the figures on stderr.

    What goes into a file or a pipe is the text itself; only a terminal would obey its control sequences.
    """

    def __init__(self, *, colour: bool) -> None:
        self._painter = Painter() if colour else None
        self._is_terminal = sys.stdout.isatty()

    def show(self, event: Event) -> None:
        if isinstance(event, Delta):
            plain = neutral(event.text) if self._is_terminal else event.text
            print(self._painter.paint(event) if self._painter else plain, end="", flush=True)
            return
        print(flush=True)
        if self._painter and (legend := self._painter.legend()):
            print(legend, file=sys.stderr)
        print(figures(event), file=sys.stderr)


class _Samples:
    """Prints each of several answers when it is complete, under a header that tells its number and seed."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def show(self, event: Event) -> None:
        if isinstance(event, Completion):
            print(f"--- sample {event.sample}, seed {event.seed}")
            screen = _Screen(colour=self._colour)
            screen.show(Delta(text=event.text, token_ids=(), attributions=event.attributions))
            screen.show(event)


def _screen(args: argparse.Namespace, request: GenerateRequest) -> _Screen | _Samples:
    colour = not args.no_color and wants_colour(sys.stdout)
    return _Samples(colour=colour) if request.sampling.n > 1 else _Screen(colour=colour)


def _print_json(event: Event) -> None:
    if isinstance(event, Completion):
        line = json.dumps(asdict(event), ensure_ascii=False)
        print(neutral(line) if sys.stdout.isatty() else line)


def _request(args: argparse.Namespace) -> GenerateRequest:
    retrieval = None
    if args.index is not None:
        given: dict[str, Any] = {"top_k": args.top_k, "placement": _PLACEMENTS.get(args.passages)}
        given = {name: value for name, value in given.items() if value is not None}
        retrieval = Retrieval(index=args.index, mode=args.mode, **given)
    return GenerateRequest(
        prompt=_read(args.prompt_file) if args.prompt is None else args.prompt,
        raw=args.raw,
        references=[Reference(id=path.name, text=_read(path)) for path in args.reference],
        prediction=_read(args.prediction_file) if args.prediction_file else "",
        retrieval=retrieval,
        sampling=sampling_options.sampling(args),
        structure=sampling_options.structure(args, _read),
        drafting=Drafting(
            enabled=not args.no_draft,
            max_draft_tokens=args.max_draft_tokens,
            corpus=args.index if args.corpus else "",
        ),
    )


def _add_source_options(parser: argparse.ArgumentParser) -> None:
    defaults = Retrieval(index="")
    parser.add_argument(
        "--reference",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="a UTF-8 text that the answer may repeat; repeatable",
    )
    parser.add_argument("--prediction-file", type=Path, metavar="FILE", help="the answer you expect")
    parser.add_argument(
        "--index", metavar="DIR|NAME", help="fetch passages: from a directory, or with --server from one of its indexes"
    )
    parser.add_argument(
        "--top-k",
        type=int,
        metavar="N",
        help=f"passages to fetch (for the likeliest tokens see --sampling-top-k); default: {defaults.top_k}",
    )
    parser.add_argument("--mode", choices=SEARCH_MODES, help="how to search; default: the index's best")
    parser.add_argument(
        "--passages",
        choices=tuple(_PLACEMENTS),
        help="put passages into the prompt, or draft from them only; default: prompt",
    )
    parser.add_argument(
        "--corpus",
        action="store_true",
        help="draft from all passages of the index, not only from those that were found",
    )


def _read(path: Path) -> str:
    """Read a file as it stands: newlines are kept, since attributions count characters."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path} is not UTF-8 (byte {error.start}); convert it first") from None
    except OSError as error:
        raise NotFoundError(f"cannot read {path}: {error.strerror}") from None
