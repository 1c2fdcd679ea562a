"""`refdraft bench drafts`: replay recorded generations to measure drafting without a model."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refdraft.errors import InvalidRequestError, NotFoundError, SourceFormatError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from refdraft.decoder.reliability import Reliability
    from refdraft.decoder.replay import Method, ReplayResult, Trace
    from refdraft.retriever.tokenizer import Tokenizer

OURS = ("refdraft", "refdraft_chain")
BASELINE = "prompt_lookup"
METHODS = (
    *OURS,
    BASELINE,
    "transformers_lookup",
    "vllm_ngram",
    "llma",
    "rest",
    "suffix_decoding",
    "suffix_decoding_alpha4",
    "aggressive",
    "copy_oracle",
    "copy_oracle_unbounded",
)
PARTS = ("all", "first", "second")


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `bench` command."""
    bench = commands.add_parser("bench", help="measure drafting")
    actions = bench.add_subparsers(required=True, metavar="ACTION")
    drafts = actions.add_parser(
        "drafts",
        help="replay recorded generations",
        description="Replay recorded generations through this project's drafter and through those of others.",
    )
    add = drafts.add_argument
    add(
        "--data",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help='JSON lines of {"prompt", "references", "output"}',
    )
    add("--budget", type=_budgets, default=(16,), metavar="N,N", help="draft nodes a step at most; default: 16")
    add("--methods", type=_methods, default=METHODS, metavar="A,B", help=f"of {', '.join(METHODS)}; default: all")
    add("--part", choices=PARTS, default="all", help="half of each file to replay; default: %(default)s")
    add("--limit", type=int, metavar="N", help="only the first N traces of each file's part")
    add("--tokenizer", type=Path, metavar="DIR", help="default: the embedded model's")
    add("--json", action="store_true", help="print one JSON object")
    add("--plot", type=Path, metavar="FILE", help="draw tokens a step by budget, as SVG")
    add("--reliability", type=Path, metavar="FILE", help="draw refdraft's predicted against observed survival, as SVG")
    drafts.set_defaults(run=run)


def _budgets(text: str) -> tuple[int, ...]:
    try:
        budgets = tuple(int(number) for number in text.split(","))
    except ValueError:
        budgets = (-1,)
    if min(budgets) < 0:
        raise argparse.ArgumentTypeError(f"must be numbers of 0 or more with commas between, not {text!r}")
    return budgets


def _methods(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in METHODS:
            raise argparse.ArgumentTypeError(f"must be of {', '.join(METHODS)}, not {name!r}")
    return names


def run(args: argparse.Namespace) -> int:
    """Replay, draw and print."""
    from refdraft.retriever.tokenizer import Tokenizer
    from refdraft.service import chart
    from refdraft.service.default_model import default_model_directory
    from refdraft.service.variants import token_classes

    _check(args)
    if args.plot or args.reliability:
        chart.require_matplotlib()
    tokenizer = Tokenizer.load(args.tokenizer or default_model_directory())
    classes = token_classes(tokenizer)
    report: dict[str, Any] = {"part": args.part, "data": []}
    for path in args.data:
        traces = _part(list(_read_traces(path, tokenizer)), args.part)[: args.limit]
        runs = [_replay(path, traces, name, budget, classes) for budget in args.budget for name in args.methods]
        tokens = sum(len(trace.output) for trace in traces)
        report["data"].append({"file": path.name, "traces": len(traces), "output_tokens": tokens, "runs": runs})
    if args.plot:
        chart.draw_budgets(report, args.plot)
    if args.reliability:
        chart.draw_reliability(report, args.reliability)
    print(json.dumps(report) if args.json else "\n\n".join(_table(data) for data in report["data"]))
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.limit is not None and args.limit < 1:
        raise InvalidRequestError(f"must be at least 1, not {args.limit}", field="--limit")
    if args.reliability and not set(OURS) & set(args.methods):
        raise InvalidRequestError(f"needs one of {', '.join(OURS)} among the methods", field="--reliability")


def _part(traces: "list[Trace]", part: str) -> "list[Trace]":
    """The first half of the traces is the larger one where their number is odd."""
    half = (len(traces) + 1) // 2
    return {"all": traces, "first": traces[:half], "second": traces[half:]}[part]


def _peers() -> "dict[str, Callable[..., Method]]":
    from refdraft.decoder.peers.aggressive import AggressiveDecoding
    from refdraft.decoder.peers.llma import Llma
    from refdraft.decoder.peers.lookup import PromptLookup
    from refdraft.decoder.peers.oracle import CopyOracle
    from refdraft.decoder.peers.rest import Rest
    from refdraft.decoder.peers.suffix_decoding import SuffixDecoding

    return {
        "prompt_lookup": PromptLookup,
        "transformers_lookup": partial(PromptLookup, longest=2),
        "vllm_ngram": partial(PromptLookup, longest=5, shortest=5, tokens=None),
        "llma": Llma,
        "rest": Rest,
        "suffix_decoding": SuffixDecoding,
        "suffix_decoding_alpha4": partial(SuffixDecoding, alpha=4),
        "aggressive": AggressiveDecoding,
        "copy_oracle": CopyOracle,
        "copy_oracle_unbounded": partial(CopyOracle, span=None),
    }


def _replay(
    path: Path, traces: "Sequence[Trace]", name: str, budget: int, classes: "NDArray[np.int32]"
) -> dict[str, Any]:
    """Replay the traces of a file through one method, which learns from nothing else."""
    from refdraft.decoder.odds import SurvivalOdds
    from refdraft.decoder.reliability import Reliability
    from refdraft.decoder.replay import RefdraftMethod

    title = f"{path.stem} {budget} {name}"
    if name not in OURS:
        return _figures(name, budget, _totals(title, traces, partial(_peers()[name], budget=budget)))
    reliability = Reliability()
    method = partial(
        RefdraftMethod,
        budget=budget,
        classes=classes,
        odds=SurvivalOdds(),
        branching=name == "refdraft",
        reliability=reliability,
    )
    return _figures(name, budget, _totals(title, traces, method)) | {"reliability": _reliability(reliability)}


def _totals(title: str, traces: "Sequence[Trace]", method: "Callable[[Trace], Method]") -> "ReplayResult":
    from tqdm import tqdm

    from refdraft.decoder.replay import ReplayResult, replay

    result = ReplayResult()
    quiet = not sys.stderr.isatty()
    progress = tqdm(replay(traces, method), total=len(traces), desc=title, unit="trace", leave=False, disable=quiet)
    for totals in progress:
        result = totals
    return result


def _figures(name: str, budget: int, result: "ReplayResult") -> dict[str, Any]:
    return {
        "method": name,
        "budget": budget,
        "tokens": result.tokens,
        "steps": result.steps,
        "tokens_per_step": round(result.tokens_per_step, 4),
        "drafted_per_step": round(result.drafted_per_step, 4),
        "acceptance": round(result.acceptance, 4),
        "seconds_per_step": round(result.seconds_per_step, 7),
    }


def _reliability(reliability: "Reliability") -> list[dict[str, Any]]:
    return [
        {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(bin_).items()}
        for bin_ in reliability.bins()
    ]


def _read_traces(path: Path, tokenizer: "Tokenizer") -> "Iterator[Trace]":
    from refdraft.decoder.replay import Trace

    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        raise NotFoundError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SourceFormatError(f"{path} is not UTF-8 (byte {error.start})") from error
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            texts = [row["prompt"], row["output"], *(reference["text"] for reference in row["references"])]
            prompt, output, *references = (tokenizer.encode(text).tolist() for text in texts)
        except (ValueError, KeyError, TypeError) as error:
            raise SourceFormatError(
                f'{path}:{number}: is no {{"prompt", "references": [{{"text"}}], "output"}} object ({error!r})'
            ) from error
        yield Trace(prompt, references, output)


def _table(data: dict[str, Any]) -> str:
    """Tokens a step, and how many times the baseline's they are, of each method at each budget."""
    runs = {(run["method"], run["budget"]): run["tokens_per_step"] for run in data["runs"]}
    methods, budgets = (list(dict.fromkeys(keys)) for keys in zip(*runs, strict=True))
    lines = [f"{data['file']}: {data['traces']} traces, {data['output_tokens']} output tokens"]
    lines += [f"{'tokens/step (ratio to prompt_lookup)':<38}" + "".join(f"{f'budget {n}':>14}" for n in budgets)]
    for method in methods:
        cells = [_cell(runs[method, budget], runs.get((BASELINE, budget))) for budget in budgets]
        lines.append(f"{method:<38}" + "".join(f"{cell:>14}" for cell in cells))
    return "\n".join(lines)


def _cell(tokens_per_step: float, baseline: float | None) -> str:
    return f"{tokens_per_step:.2f} ({tokens_per_step / baseline:.2f})" if baseline else f"{tokens_per_step:.2f}"
