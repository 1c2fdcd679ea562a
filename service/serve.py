"""`refdraft serve`: a pipeline behind a gRPC port."""

import argparse
import asyncio
from pathlib import Path

from refdraft.service.channel import DEFAULT_HOST, DEFAULT_PORT
from refdraft.service.options import add_model_options, check_indexes, pipeline_config


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `serve` command."""
    parser = commands.add_parser("serve", help="answer gRPC calls", description="Answer gRPC calls.")
    names = ("slots", "queue_limit", "context_limit", "dtype", "device", "threads", "numerics")
    add_model_options(parser, *names, "draft_model", "history_tokens")
    parser.add_argument(
        "--index",
        action="append",
        default=[],
        type=_named_directory,
        metavar="NAME=DIR",
        help="an index to open; repeatable",
    )
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to bind; default: %(default)s")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 lets the system choose; default: %(default)s")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    names = [name for name, _ in args.index]
    if twice := {name for name in names if names.count(name) > 1}:
        args.usage_error(f"--index names {', '.join(sorted(twice))} twice: give each index a name of its own")
    if not 0 <= args.port <= 65_535:
        args.usage_error(f"argument --port: must be in 0..65535, not {args.port}")
    config, indexes = pipeline_config(args), dict(args.index)
    check_indexes(indexes.values())
    from refdraft.service.server import check_address, serve

    check_address(args.host, args.port)
    from refdraft.service.pipeline import Pipeline  # slow to import, hence not before

    with Pipeline.load(args.model, indexes=indexes, config=config) as pipeline:
        asyncio.run(serve(pipeline, host=args.host, port=args.port))
    return 0


def _named_directory(text: str) -> tuple[str, Path]:
    name, separator, directory = text.partition("=")
    if not (name and separator and directory):
        raise argparse.ArgumentTypeError(f"write NAME=DIR, not {text!r}")
    return name, Path(directory)
