"""Fit the drafter's prior, decoder/prior.json, by letting it learn from recorded answers.

The first halves of LLMA's and MTRAG's traces, and every other answer of the default model with its runners-up
(benchmarks/record_answers.py). JFLEG takes no part: its licence allows measuring only, and so it shows how well the
prior carries over to work that it has not seen.

    .venv/bin/python benchmarks/fit_prior.py [--data ../shared/data/traces] [--answers build/answers.jsonl]
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.drafter import Drafter
from refdraft.decoder.odds import GUESSED, MATCH, PRIOR_FILE, WEIGHTS, SurvivalOdds, Weights, save_prior
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.default_model import default_model_directory
from refdraft.service.variants import token_classes

ROOT = Path(__file__).resolve().parent.parent
TRACES = ("rag_llma", "rag_mtrag")
ROUNDS = 2
BUDGET = 32
_GUESSED = 3.0  # of a draft model's guess, which no recorded answer has


@dataclass(frozen=True)
class Answer:
    """A recorded answer; runners-up as (id, logit below the highest) of each output token, where they are known."""

    prompt: list[int]
    references: list[list[int]]
    output: list[int]
    runners: list[list[tuple[int, float]]] | None = None

    def logits(self, start: int, end: int, vocabulary: int) -> NDArray[np.float32] | None:
        """Logits of output tokens [start, end) with the runners-up in them: float32 [end - start, vocabulary]."""
        if self.runners is None:
            return None
        logits = np.full((end - start, vocabulary), -np.inf, np.float32)
        for row, runners in zip(logits, self.runners[start:end], strict=True):
            for token, gap in runners:
                row[token] = -gap
        return logits


def read_traces(path: Path, tokenizer: Tokenizer) -> list[Answer]:
    """Read a file of traces."""
    rows = map(json.loads, path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    return [
        Answer(
            tokenizer.encode(row["prompt"]).tolist(),
            [tokenizer.encode(reference["text"]).tolist() for reference in row["references"]],
            tokenizer.encode(row["output"]).tolist(),
        )
        for row in rows
    ]


def read_answers(path: Path) -> list[Answer]:
    """Read what record_answers.py wrote."""
    rows = map(json.loads, path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    return [Answer(row["prompt"], [], row["output"], row["runners"]) for row in rows]


def replay(answers: list[Answer], odds: SurvivalOdds, classes: NDArray[np.int32]) -> Iterator[int]:
    """Draft along each answer, learning, and yield the tokens that each step would have committed."""
    for answer in answers:
        drafter = Drafter(
            answer.prompt,
            {"references": answer.references},
            output_room=len(answer.output),
            classes=classes,
            odds=odds,
        )
        position, accepted = 0, 0
        while position < len(answer.output):
            end = position + accepted + 1
            drafter.observe(answer.output[position:end], answer.logits(position, end, len(classes)))
            if position:
                yield end - position
            position, accepted = end, 0
            draft, node = drafter.propose(BUDGET), -1
            while position + accepted + 1 < len(answer.output):
                child = draft.child(node, answer.output[position + accepted])
                if child is None:
                    break
                node, accepted = child, accepted + 1


def main() -> None:
    """Fit, report, and write the prior."""
    parser = argparse.ArgumentParser(description="Fit the drafter's prior on recorded answers.")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "traces")
    parser.add_argument("--answers", type=Path, default=ROOT / "build" / "answers.jsonl")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.load(default_model_directory())
    classes = token_classes(tokenizer)
    traces = [read_traces(arguments.data / f"{name}.jsonl", tokenizer) for name in TRACES]
    seen = [answer for answers in traces for answer in answers[: (len(answers) + 1) // 2]]
    answers = read_answers(arguments.answers)
    seen += answers[::2]
    odds = SurvivalOdds(Weights(np.zeros(WEIGHTS), np.ones(WEIGHTS)))
    random = np.random.default_rng(0)
    for turn in range(ROUNDS):
        order = [seen[index] for index in random.permutation(len(seen))]
        print(f"round {turn + 1}: {np.mean(list(replay(order, odds, classes))):.3f} tokens a step")
    odds.weights.values[MATCH + GUESSED] = _GUESSED
    save_prior(odds.weights.values, PRIOR_FILE)
    unseen = {name: half[(len(half) + 1) // 2 :] for name, half in zip(TRACES, traces, strict=True)}
    for name, held_out in (unseen | {"answers": answers[1::2]}).items():
        print(f"{name}, held out: {np.mean(list(replay(held_out, odds, classes))):.3f} tokens a step")


if __name__ == "__main__":
    main()
