"""Real decoding with the default model: refdraft beside plain decoding and beside others' drafting.

Plain decoding, refdraft, transformers' prompt lookup and arctic-inference's SuffixDecodingCache draft for the same
engine, one after the other on one prefill of each prompt, in an order that rotates from prompt to prompt; batch 1,
greedy. Others' drafts are verified whole, as their rules have it; refdraft's are planned. `generate` of transformers,
plain and with prompt lookup, is run outside the engine on the first prompts of each set, in float32.

    .venv/bin/python benchmarks/real_decoding.py [--dtype bfloat16] [--sets rag,edits] [--methods plain,refdraft]

Every finished prompt is a line in the records file; a run that was stopped goes on behind the last. Seconds leave
out the prefill, which is the same for all, and count what it takes to build a drafter.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from decoding.drafters import ARCTIC_HINT, LookupDrafter, SuffixDrafter
from decoding.outside import Generate
from decoding.prompts import SETS, Prompt, encode, read_prompts
from decoding.race import CONTEXT, DRAFT_TOKENS, Course, Entry
from decoding.records import Record, Records, make_record, summarise, write_summary

from refdraft.decoder.request import DecodeRequest

ROOT = Path(__file__).resolve().parent.parent
INSIDE = ("plain", "refdraft", "prompt_lookup", "suffix_decoding")
OUTSIDE: dict[str, dict[str, int]] = {"transformers": {}, "transformers_lookup": {"prompt_lookup_num_tokens": 10}}
PAIRS = (
    ("refdraft", "plain"),
    ("refdraft", "prompt_lookup"),
    ("refdraft", "suffix_decoding"),
    ("refdraft", "transformers"),
    ("refdraft", "transformers_lookup"),
    ("prompt_lookup", "plain"),
    ("suffix_decoding", "plain"),
    ("plain", "transformers"),
)


class Field:
    """The methods to compare, ready to run.

    Args:
        methods: names from `INSIDE` and `OUTSIDE`.
        dtype: of the weights.

    Raises:
        ImportError: arctic-inference is wanted and not installed.
    """

    def __init__(self, methods: Sequence[str], dtype: str) -> None:
        self._course = Course.load(dtype)
        eos_ids = self._course.engine.target.eos_ids
        self._generate = Generate(self._course.directory) if set(methods) & OUTSIDE.keys() else None
        self._builders: dict[str, Callable[[DecodeRequest], Any]] = {
            "plain": lambda _: None,
            "refdraft": self._course.engine.build_drafter,
            "prompt_lookup": lambda request: LookupDrafter(request.prompt, eos_ids),
        }
        if "suffix_decoding" in methods:
            cache = SuffixDrafter.new_cache()
            self._builders["suffix_decoding"] = lambda request: SuffixDrafter(cache, request.prompt)
        for turn in range(2):  # the first calls pay for what later ones find ready
            self.run(Prompt("", "", "Repeat this: ", "One two three four, one two three five."), methods, turn)

    def run(self, prompt: Prompt, methods: Sequence[str], turn: int) -> Record:
        """The record of a prompt, run by `methods`."""
        tokenizer = self._course.tokenizer
        ids, cut = encode(tokenizer, prompt, CONTEXT - prompt.new_tokens)
        prediction = {"prediction": [tokenizer.encode(prompt.text, add_special_tokens=False)]}
        request = DecodeRequest(
            ids,
            prompt.new_tokens,
            eos_ids=self._course.engine.target.eos_ids,
            documents=prediction if prompt.predicted else {},
            max_draft_tokens=DRAFT_TOKENS,
        )
        entries = {
            name: Entry(request, self._builders[name], planned=name in ("plain", "refdraft"))
            for name in methods
            if name in INSIDE
        }
        prefill_seconds, runs = self._course.race(entries, turn)
        for name in methods:
            if self._generate and name in OUTSIDE:
                runs[name] = self._generate.run(ids, prompt.new_tokens, **OUTSIDE[name])
        return make_record(prompt.id, prompt.set, ids, prefill_seconds, runs, cut=cut)


def choose_prompts(arguments: argparse.Namespace) -> Iterator[tuple[Prompt, list[str]]]:
    """Yield the prompts and the methods that are to run each."""
    for name in arguments.sets:
        for place, prompt in enumerate(islice(read_prompts(arguments.data, name), arguments.limit)):
            yield prompt, [name for name in arguments.methods if name in INSIDE or place < arguments.outside]


def measure(arguments: argparse.Namespace, records: Records) -> None:
    """Add a record of every prompt that has none yet."""
    chosen = list(choose_prompts(arguments))
    field = None
    for turn, (prompt, methods) in enumerate(chosen):
        if not records.has(prompt.id, methods):
            field = field or Field(arguments.methods, arguments.dtype)
            records.add(field.run(prompt, methods, turn))
            print(f"{turn + 1}/{len(chosen)}: {prompt.set} {prompt.id}", flush=True)


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="refdraft's decoding beside plain decoding and others' drafting.")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--sets", type=_names(SETS), default=list(SETS), help=f"of {','.join(SETS)}")
    parser.add_argument("--methods", type=_names((*INSIDE, *OUTSIDE)), help=f"of {','.join((*INSIDE, *OUTSIDE))}")
    parser.add_argument("--limit", type=int, help="prompts of each set, for a trial")
    parser.add_argument("--outside", type=int, default=5, help="prompts of each set for transformers' own generate")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    parser.add_argument("--records", type=Path, help="default: build/real_decoding_DTYPE.jsonl")
    parser.add_argument("--summary", type=Path, help="default: benchmarks/results/real_decoding_DTYPE.json")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        parser.error(f"no data at {arguments.data}: give its folder with --data")
    if arguments.methods is None:
        arguments.methods = [*INSIDE, *(OUTSIDE if arguments.dtype == "float32" else ())]
    if "plain" not in arguments.methods:
        parser.error("--methods needs plain, which the others are compared with")
    if "suffix_decoding" in arguments.methods and find_spec("arctic_inference") is None:
        parser.error(ARCTIC_HINT)
    name = f"real_decoding_{arguments.dtype}"
    arguments.records = arguments.records or ROOT / "build" / f"{name}.jsonl"
    arguments.summary = arguments.summary or ROOT / "benchmarks" / "results" / f"{name}.json"
    return arguments


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """A parser of a list of names, in the order in which they are known."""

    def names(text: str) -> list[str]:
        wanted = text.split(",")
        if unknown := set(wanted) - set(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
        return [name for name in known if name in wanted]

    return names


def main() -> None:
    """Measure what is missing, then write and print the summary."""
    arguments = read_arguments()
    torch.set_num_threads(arguments.threads)
    records = Records(arguments.records)
    measure(arguments, records)
    sets = {name: records.of(name) for name in SETS}
    figures = {name: summarise(found, PAIRS) for name, found in sets.items() if found}
    write_summary(arguments.summary, arguments.dtype, figures)


if __name__ == "__main__":
    main()
