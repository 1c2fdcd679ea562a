"""`refdraft bench drafts`: replay recorded generations to measure drafting without a model."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refdraft.errors import InvalidRequestError, NotFoundError, SourceFormatError

if TYPE_CHECKING:
    from refdraft.decoder.replay import Method, ReplayResult, Trace
    from refdraft.retriever.tokenizer import Tokenizer


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `bench` command."""
    bench = commands.add_parser("bench", help="measure drafting")
    actions = bench.add_subparsers(required=True, metavar="ACTION")
    drafts = actions.add_parser(
        "drafts",
        help="replay recorded generations",
        description="Replay recorded generations through drafting methods.",
    )
    drafts.add_argument(
        "--data", type=Path, required=True, metavar="FILE", help='JSON lines of {"prompt", "references", "output"}'
    )
    drafts.add_argument("--budget", type=int, default=16, metavar="N", help="draft nodes a step; default: %(default)s")
    drafts.add_argument("--limit", type=int, metavar="N", help="only the first N traces")
    drafts.add_argument("--tokenizer", type=Path, metavar="DIR", help="default: the embedded model's")
    drafts.add_argument("--json", action="store_true", help="print one JSON object")
    drafts.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Replay and print."""
    from refdraft.retriever.tokenizer import Tokenizer
    from refdraft.service.default_model import default_model_directory

    if args.budget < 0:
        raise InvalidRequestError(f"must not be negative, as {args.budget} is", field="--budget")
    if args.limit is not None and args.limit < 1:
        raise InvalidRequestError(f"must be at least 1, not {args.limit}", field="--limit")
    traces = list(_read_traces(args.data, Tokenizer.load(args.tokenizer or default_model_directory()), args.limit))
    results = {name: _replay(name, traces, method) for name, method in _methods(args.budget).items()}
    report = {
        "data": str(args.data),
        "traces": len(traces),
        "output_tokens": sum(len(trace.output) for trace in traces),
        "budget": args.budget,
        "methods": {
            name: {
                "tokens_per_step": round(result.tokens_per_step, 4),
                "drafted_per_step": round(result.drafted_per_step, 4),
            }
            for name, result in results.items()
        },
    }
    print(json.dumps(report) if args.json else _table(report))
    return 0


def _methods(budget: int) -> "dict[str, Callable[[Trace], Method]]":
    from refdraft.decoder import replay
    from refdraft.decoder.odds import AcceptanceRates

    rates = AcceptanceRates()
    return {
        "refdraft": lambda trace: replay.RefdraftMethod(trace, budget=budget, rates=rates),
        "prompt_lookup": lambda trace: replay.PromptLookupMethod(trace, budget=budget),
        "copy_oracle": lambda trace: replay.CopyOracleMethod(trace, budget=budget),
    }


def _replay(name: str, traces: "list[Trace]", method: "Callable[[Trace], Method]") -> "ReplayResult":
    from tqdm import tqdm

    from refdraft.decoder.replay import ReplayResult, replay

    result = ReplayResult()
    progress = tqdm(replay(traces, method), total=len(traces), desc=name, unit="trace", disable=not sys.stderr.isatty())
    for totals in progress:
        result = totals
    return result


def _read_traces(path: Path, tokenizer: "Tokenizer", limit: int | None) -> "Iterator[Trace]":
    from refdraft.decoder.replay import Trace

    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        raise NotFoundError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SourceFormatError(f"{path} is not UTF-8 (byte {error.start})") from error
    for number, line in enumerate(lines[:limit], start=1):
        try:
            row = json.loads(line)
            texts = [row["prompt"], row["output"], *(reference["text"] for reference in row["references"])]
            prompt, output, *references = (tokenizer.encode(text).tolist() for text in texts)
        except (ValueError, KeyError, TypeError) as error:
            raise SourceFormatError(
                f'{path}:{number}: is no {{"prompt", "references": [{{"text"}}], "output"}} object ({error!r})'
            ) from error
        yield Trace(prompt, references, output)


def _table(report: dict[str, Any]) -> str:
    lines = [f"{report['traces']} traces, {report['output_tokens']} output tokens, budget {report['budget']}"]
    lines += [f"{'method':<16}{'tokens/step':>12}{'drafted/step':>14}"]
    lines += [
        f"{name:<16}{figures['tokens_per_step']:>12.2f}{figures['drafted_per_step']:>14.2f}"
        for name, figures in report["methods"].items()
    ]
    return "\n".join(lines)
