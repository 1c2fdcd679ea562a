"""What retrieval finds for each recorded answer: once for its question, and again as the answer is written."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from corpora.texts import read_lines
from refdraft.decoder.replay import Trace
from refdraft.retriever.index import Index
from refdraft.retriever.tokenizer import Tokenizer

TOP_K = 10
EVERY = 16  # output tokens between one search and the next
WINDOW = 48  # output tokens that a search is for

Found = list[int]  # numbers of passages, best first


@dataclass(frozen=True, slots=True)
class Searched(Trace):
    """A trace and what was found for it.

    Attributes:
        once: the question's passages.
        again: by output position, the passages found for what stands before it.
        milliseconds: of each search.
    """

    once: Found
    again: dict[int, Found]
    milliseconds: list[float]

    @classmethod
    def of(cls, row: dict[str, Any]) -> "Searched":
        """From a record of `search`."""
        again = {int(position): found for position, found in row["again"].items()}
        return cls(row["prompt"], row["references"], row["output"], row["once"], again, row["milliseconds"])


def search(traces: Path, done: int, index: Index, tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """A record for each trace of a file but the first `done`."""
    for row in list(read_lines(traces))[done:]:
        output = tokenizer.encode(row["output"]).tolist()
        milliseconds: list[float] = []
        yield {
            "prompt": tokenizer.encode(row["prompt"]).tolist(),
            "references": [tokenizer.encode(reference["text"]).tolist() for reference in row["references"]],
            "output": output,
            "once": _find(index, question(row["prompt"]), milliseconds),
            "again": {
                position: _find(index, _written(tokenizer, output[:position]), milliseconds)
                for position in range(EVERY, len(output), EVERY)
            },
            "milliseconds": milliseconds,
        }


def question(prompt: str) -> str:
    """What the user asked last."""
    return prompt.rpartition("\nuser: ")[2].removeprefix("user: ")


def _written(tokenizer: Tokenizer, output: Sequence[int]) -> str:
    text: str = tokenizer.backend.decode(list(output[-WINDOW:]))
    return text


def _find(index: Index, query: str, milliseconds: list[float]) -> Found:
    start = perf_counter()
    hits = index.search(query, top_k=TOP_K) if query.strip() else []
    milliseconds.append(round(1e3 * (perf_counter() - start), 2))
    return [hit.number for hit in hits]
