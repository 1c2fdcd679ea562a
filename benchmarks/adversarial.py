"""What drafting may cost at worst: references that mislead, against plain decoding.

Each prompt is answered plainly once; then plain decoding and refdraft with each kind of reference run one after the
other on one prefill, in an order that rotates, some rounds of them. Every drafted run starts with the odds that
refdraft comes with: none has learned from another. Its other sources stay on, as a user has them, unless --alone.

    .venv/bin/python benchmarks/adversarial.py [--dtype bfloat16] [--alone]

Every finished round is a line in the records file; a run that was stopped goes on behind the last. Seconds leave out
the prefill and count what it takes to build the drafter.
"""

import argparse
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from decoding.prompts import Prompt, encode, read_turns
from decoding.race import CONTEXT, DRAFT_TOKENS, Course, Entry
from decoding.records import Records, make_record, summarise, write_summary

from refdraft.decoder.drafter import Drafter, DrafterOptions
from refdraft.decoder.odds import SurvivalOdds
from refdraft.decoder.request import DecodeRequest

ROOT = Path(__file__).resolve().parent.parent
NEW_TOKENS = 256
CATEGORIES = ("writing", "roleplay", "stem", "humanities")  # of MT-Bench; the first question of each
CASES = ("random text", "almost right", "wrong document", "one token")
ALONE = DrafterOptions(copy_prompt=False, copy_output=False, follow_target=False)


def mislead(tokenizer: Any, answer: list[int], document: str) -> Mapping[str, list[int]]:
    """References by case.

    Args:
        tokenizer: the target's.
        answer: what the target writes.
        document: an article about something else.

    Returns:
        Token ids: words drawn from the document at random; the answer with every seventh word changed; the document;
        the answer's most frequent token as often as it fits into a megabyte.
    """
    rng = np.random.default_rng(0)
    words = document.split()
    almost = [str(rng.choice(words)) if n % 7 == 6 else word for n, word in enumerate(tokenizer.decode(answer).split())]
    texts = (" ".join(rng.choice(words, 4000)), " ".join(almost), document)
    token = Counter(answer).most_common(1)[0][0]
    repeated = [token] * (1_000_000 // len(tokenizer.decode([token]).encode()))
    references = [*(tokenizer.encode(text, add_special_tokens=False) for text in texts), repeated]
    return dict(zip(CASES, references, strict=True))


class Trial:
    """The model, and how it is misled.

    Args:
        dtype: of the weights.
        options: what is drafted from beside the references.
        document: an article that no prompt is about.
    """

    def __init__(self, dtype: str, options: DrafterOptions, document: str) -> None:
        self._course = Course.load(dtype)
        self._options, self._document = options, document
        self._answers: dict[str, list[int]] = {}
        self.run(Prompt("", "", "", "Write a poem.", new_tokens=16), 0)  # pays for what later runs find ready

    def run(self, prompt: Prompt, turn: int) -> dict[str, Any]:
        """The record of one round."""
        tokenizer, eos_ids = self._course.tokenizer, self._course.engine.target.eos_ids
        ids, _ = encode(tokenizer, prompt, CONTEXT - prompt.new_tokens)
        plain = Entry(DecodeRequest(ids, prompt.new_tokens, eos_ids=eos_ids, max_draft_tokens=0))
        if prompt.id not in self._answers:
            self._answers[prompt.id] = self._course.race({"plain": plain}, 0)[1]["plain"].ids
        entries = {"plain": plain}
        for case, reference in mislead(tokenizer, self._answers[prompt.id], self._document).items():
            request = DecodeRequest(
                ids,
                prompt.new_tokens,
                eos_ids=eos_ids,
                documents={"references": [reference]},
                drafting=self._options,
                max_draft_tokens=DRAFT_TOKENS,
            )
            entries[case] = Entry(request, self._build)
        prefill_seconds, runs = self._course.race(entries, turn)
        return make_record(f"{prompt.id}-{turn}", prompt.set, ids, prefill_seconds, runs)

    def _build(self, request: DecodeRequest) -> Drafter | None:
        self._course.engine.odds = SurvivalOdds()
        return self._course.engine.build_drafter(request)


def measure(arguments: argparse.Namespace, records: Records) -> None:
    """Add a record of every round that has none yet."""
    questions = [(name, *next(read_turns(arguments.data, name))) for name in CATEGORIES][: arguments.limit]
    _, document = next(read_turns(arguments.data, "summarization"))
    trial = None
    for turn in range(arguments.rounds):
        for name, question, text in questions:
            if not records.has(f"{question}-{turn}", CASES):
                trial = trial or Trial(arguments.dtype, ALONE if arguments.alone else DrafterOptions(), document)
                records.add(trial.run(Prompt(question, name, "", text, new_tokens=NEW_TOKENS), turn))
                print(f"round {turn + 1}/{arguments.rounds}: {name}", flush=True)


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Drafting from references that mislead, against plain decoding.")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--alone", action="store_true", help="draft from the references and nothing else")
    parser.add_argument("--limit", type=int, help="prompts, for a trial")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s, one for each place in the order")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    parser.add_argument("--records", type=Path, help="default: build/adversarial_DTYPE.jsonl")
    parser.add_argument("--summary", type=Path, help="default: benchmarks/results/adversarial_DTYPE.json")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        parser.error(f"no data at {arguments.data}: give its folder with --data")
    name = f"adversarial{'_alone' if arguments.alone else ''}_{arguments.dtype}"
    arguments.records = arguments.records or ROOT / "build" / f"{name}.jsonl"
    arguments.summary = arguments.summary or ROOT / "benchmarks" / "results" / f"{name}.json"
    return arguments


def main() -> None:
    """Measure what is missing, then write and print the summary."""
    arguments = read_arguments()
    torch.set_num_threads(arguments.threads)
    records = Records(arguments.records)
    measure(arguments, records)
    pairs = [(case, "plain") for case in CASES]
    sets = {name: records.of(name) for name in CATEGORIES}
    sets["all"] = [record for found in sets.values() for record in found]
    figures = {name: summarise(found, pairs) for name, found in sets.items() if found}
    write_summary(arguments.summary, arguments.dtype, figures)


if __name__ == "__main__":
    main()
