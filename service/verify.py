"""`refdraft verify`: the losslessness of drafting, checked on one's own model, machine and prompts.

Every prompt is decoded plainly once, then drafted, alone and in a batch whose requests come and go in random
order. Drafts are copied from a worn copy of the plain output, every eighth token of which is replaced, and
width counts as free: so passes are wide and spans hold and break all the time, more than any real source
would make them.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refdraft.controls import neutral
from refdraft.errors import NotFoundError, SourceFormatError
from refdraft.service.options import add_model_options, pipeline_config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from refdraft.service.verification import Outcome, RunName

# For want of --data: something to write freely, to correct, to repeat, to list, to translate and to format.
_PROMPTS = (
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Correct all grammatical errors: He go to school every days and he like it very much, as his friends is there.",
    "Repeat this sentence three times: The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "Explain in simple words why the sky is blue.",
    "List the numbers from one to thirty in words.",
    "Translate to French: Where is the nearest station, and when does the next train leave?",
    "Write a Python function that reverses the words of a sentence.",
    'Give a JSON object with the keys "name", "age" and "city" for each of three people.',
)
_SETTINGS = ("max_tokens", "max_draft_tokens", "batch", "temperature", "top_p")
_PREFILL_CHUNK = 128  # tokens; strict numerics may pad every prompt to a multiple of it
_SHOWN = 5  # differences printed; all of them are in the JSON


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user turn, named by its own id or by its line."""

    name: str
    text: str
    category: str


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `verify` command."""
    parser = commands.add_parser(
        "verify",
        help="check that drafting changes nothing, on your model and machine",
        description="Decode prompts plainly and drafted, alone and in a changing batch, and compare every token. "
        "Exits with 0 where all outputs are identical and with 1 where one differs.",
    )
    add_model_options(parser, "context_limit", "dtype", "device", "threads", "numerics")
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help='JSON lines of {"prompt"} or {"turns"}; default: a few of ours'
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only N prompts, balanced over their categories")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="of each output; default: %(default)s")
    parser.add_argument("--batch", type=int, default=4, metavar="N", help="requests at once; default: %(default)s")
    parser.add_argument(
        "--max-draft-tokens",
        type=int,
        default=15,
        metavar="N",
        help="a step; where strict numerics needs one shape, it has N + 1 columns; default: %(default)s",
    )
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy; default: %(default)s")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="default: %(default)s")
    parser.add_argument("--only", choices=("alone", "batch"), help="one of the two drafted runs; default: both")
    parser.add_argument("--records", type=Path, metavar="FILE", help="keep what is done, so that a stopped run goes on")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Decode, compare and print."""
    _check_usage(args)
    prompts = _balanced(_read(args.data) if args.data else _builtin(), args.limit)
    report = _verify(args, prompts)
    print(json.dumps(report, ensure_ascii=False) if args.json else _table(report))
    return 0 if report["lossless"] else 1


def _check_usage(args: argparse.Namespace) -> None:
    for name in ("max_tokens", "batch", "max_draft_tokens", "limit"):
        value = getattr(args, name)
        if value is not None and value < 1:
            args.usage_error(f"argument --{name.replace('_', '-')}: must be at least 1, not {value}")
    if not 0 <= args.temperature <= 1e30:
        args.usage_error(f"argument --temperature: must be in [0, 1e30], not {args.temperature}")
    if not 0 < args.top_p <= 1:
        args.usage_error(f"argument --top-p: must be in (0, 1], not {args.top_p}")


def _verify(args: argparse.Namespace, prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Load the target, run what is asked for, and report on it."""
    from refdraft.decoder.sampling import SamplingOptions
    from refdraft.service.loading import engine_config, load_target
    from refdraft.service.prompts import PromptEncoder
    from refdraft.service.types import GenerateRequest
    from refdraft.service.verification import DRAFTED_RUNS, Records, Verification

    config = replace(pipeline_config(args), slots=args.batch)
    engine = engine_config(
        config,
        max_draft_tokens=args.max_draft_tokens,
        strict_width=args.max_draft_tokens + 1,
        prefill_chunk=_PREFILL_CHUNK,
    )
    target, tokenizer, model = load_target(args.model, config, engine)
    encoder = PromptEncoder(tokenizer, target.vocabulary_size)
    encoded = {prompt.name: encoder.encode(GenerateRequest(prompt=prompt.text)) for prompt in prompts}
    fitting = {name: ids for name, ids in encoded.items() if len(ids) + args.max_tokens <= target.context_limit}
    settings = {
        "model": model,
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "numerics": engine.numerics,
        **{name: getattr(args, name) for name in _SETTINGS},
    }
    sampling = SamplingOptions(temperature=args.temperature, top_p=args.top_p)
    verification = Verification(target, engine, sampling, max_tokens=args.max_tokens)
    records = Records(args.records, settings)
    runs: tuple[RunName, ...] = (args.only,) if args.only else DRAFTED_RUNS
    for name in ("plain", *runs):
        verification.decode(name, fitting, records)
    outcomes = {name: [records.get(name, prompt) for prompt in fitting] for name in ("plain", *runs)}
    figures = {name: _figures(outcomes[name], outcomes["plain"]) for name in outcomes}
    kept = "same_bits" if engine.numerics == "strict" else "identical"  # what these numerics promise
    return {
        "settings": settings,
        "prompts": len(fitting),
        "too_long": len(encoded) - len(fitting),
        "lossless": all(run[kept] == len(fitting) for run in figures.values()),
        "runs": figures,
        "differences": [
            _describe(outcome, tokenizer) for found in outcomes.values() for outcome in found if outcome.difference
        ],
    }


def _figures(outcomes: "Sequence[Outcome]", plain: "Sequence[Outcome]") -> dict[str, Any]:
    tokens, steps = sum(len(outcome.ids) for outcome in outcomes), sum(outcome.steps for outcome in outcomes)
    return {
        "identical": sum(outcome.difference is None for outcome in outcomes),
        "same_bits": sum(ours.digest == theirs.digest for ours, theirs in zip(outcomes, plain, strict=True)),
        "tokens": tokens,
        "steps": steps,
        "tokens_per_step": round((tokens - len(outcomes)) / max(steps, 1), 3),
        "drafted": sum(outcome.drafted for outcome in outcomes),
        "accepted": sum(outcome.accepted for outcome in outcomes),
    }


def _describe(outcome: "Outcome", tokenizer: "PreTrainedTokenizerBase") -> dict[str, Any]:
    difference = outcome.difference
    assert difference is not None
    texts = {
        f"{name}_text": None if token is None else tokenizer.decode([token])
        for name, token in (("plain", difference.plain), ("drafted", difference.drafted))
    }
    return {"prompt": outcome.prompt, "run": outcome.run, **asdict(difference), **texts}


def _table(report: dict[str, Any]) -> str:
    settings, prompts = report["settings"], report["prompts"]
    how = "greedy" if settings["temperature"] == 0 else f"temperature {settings['temperature']:g}"
    lines = [
        f"{settings['model']} on {settings['device']}, {settings['dtype']}, numerics {settings['numerics']}: "
        f"{prompts} prompts, at most {settings['max_tokens']} tokens each, {how}"
    ]
    if report["too_long"]:
        lines.append(f"{report['too_long']} prompts do not fit the context and were left out")
    lines.append(
        f"{'run':<10}{'identical':>14}{'same bits':>14}{'tokens':>9}{'steps':>8}{'tokens/step':>13}{'accepted':>18}"
    )
    for name, run in report["runs"].items():
        identical, bits = f"{run['identical']} of {prompts}", f"{run['same_bits']} of {prompts}"
        accepted = f"{run['accepted']} of {run['drafted']}"
        lines.append(
            f"{name:<10}{identical:>14}{bits:>14}{run['tokens']:>9}{run['steps']:>8}{run['tokens_per_step']:>13.2f}{accepted:>18}"
        )
    lines += [_difference_line(difference) for difference in report["differences"][:_SHOWN]]
    if len(report["differences"]) > _SHOWN:
        lines.append(f"... and {len(report['differences']) - _SHOWN} more; --json prints them all")
    if report["differences"]:
        lines.append("some outputs differ")
    else:
        lines.append("all outputs are identical" + ("" if report["lossless"] else ", but not all logits are"))
    return "\n".join(lines)


def _difference_line(difference: dict[str, Any]) -> str:
    def choice(name: str) -> str:
        token, text = difference[name], difference[f"{name}_text"]
        logits = ", ".join("-" if logit is None else f"{logit:.5f}" for logit in difference[f"{name}_logits"])
        chosen = "the end" if token is None else f"{neutral(repr(text))} ({token})"
        return f"{name} chose {chosen}, logits of both {logits}"

    where = f"prompt {neutral(difference['prompt'])}, {difference['run']}, output token {difference['token'] + 1}"
    return f"{where}: {choice('plain')}; {choice('drafted')}"


def _builtin() -> list[Prompt]:
    return [Prompt(str(number), text, "") for number, text in enumerate(_PROMPTS, start=1)]


def _read(path: Path) -> list[Prompt]:
    """Prompts of a file of JSON lines: a text under "prompt", or the first of "turns".

    Raises:
        NotFoundError: the file cannot be read.
        SourceFormatError: a line is something else; it is named.
    """
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except OSError as error:
        raise NotFoundError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SourceFormatError(f"{path} is not UTF-8 (byte {error.start})") from error
    prompts: dict[str, Prompt] = {}
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            text = row["prompt"] if "prompt" in row else row["turns"][0]
            if not isinstance(text, str) or not text:
                raise ValueError("no text")
            name = str(row.get("id", row.get("question_id", number)))
            category = str(row.get("category", ""))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise SourceFormatError(f'{path}:{number}: is no {{"prompt"}} or {{"turns"}} object ({error!r})') from error
        if name in prompts:
            raise SourceFormatError(f"{path}:{number}: a second prompt has the id {name!r}")
        prompts[name] = Prompt(name, text, category)
    return list(prompts.values())


def _balanced(prompts: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """The first of each category, then the second of each, and so on up to `limit`."""
    if limit is None:
        return list(prompts)
    seen: defaultdict[str, int] = defaultdict(int)
    ranks: list[tuple[int, int]] = []
    for place, prompt in enumerate(prompts):
        ranks.append((seen[prompt.category], place))
        seen[prompt.category] += 1
    return [prompts[place] for _, place in sorted(ranks)[:limit]]
