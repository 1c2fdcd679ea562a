"""The prompts of the decoding benchmarks: a fixed choice, read from the data folder."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_FEWEST_WORDS, _MOST_WORDS = 100, 200  # of a text to edit or to repeat

_EDITS = (
    'Write "{word}" in capital letters everywhere in this text.',
    "Put the last sentence of this text into the future tense.",
    'Replace "{word}" by "thing" everywhere in this text.',
    "Remove the first sentence of this text.",
)
_COPIES = ("Repeat this text word for word:\n\n", "Quote the first five sentences of this text, word for word:\n\n")


@dataclass(frozen=True)
class Prompt:
    """A user turn: an instruction and the text it is about.

    Attributes:
        id: unique among all sets.
        set: one of `SETS`.
        instruction: what to do.
        text: cut at its start where it is too long.
        new_tokens: output tokens at most.
        predicted: whether the text is sent as a prediction of the answer too.
    """

    id: str
    set: str
    instruction: str
    text: str
    new_tokens: int = 64
    predicted: bool = False


def read_prompts(data: Path, name: str) -> Iterator[Prompt]:
    """Yield the prompts of a set, in order.

    Args:
        data: the folder that holds `spec_bench` and `traces`.
        name: one of `SETS`.
    """
    yield from SETS[name](data, name)


def encode(tokenizer: Any, prompt: Prompt, most: int) -> tuple[list[int], bool]:
    """Return the templated prompt's ids, `most` at most, and whether its text had to be cut."""
    text_ids: list[int] = tokenizer.encode(prompt.text, add_special_tokens=False)
    text, cut = prompt.text, False
    while True:
        chat = [{"role": "user", "content": prompt.instruction + text}]
        rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids: list[int] = tokenizer.encode(rendered, add_special_tokens=False)
        if len(ids) <= most:
            return ids, cut
        text_ids, cut = text_ids[len(ids) - most :], True
        text = tokenizer.decode(text_ids)


def read_turns(data: Path, category: str) -> Iterator[tuple[str, str]]:
    """Yield the id and the first turn of each of Spec-Bench's questions of a category."""
    for row in _read_rows(data / "spec_bench" / "question.jsonl"):
        if row["category"] == category:
            yield str(row["question_id"]), row["turns"][0]


def _questions(data: Path, name: str, *, count: int, prefix: str = "") -> Iterator[Prompt]:
    for question, turn in list(read_turns(data, name))[:count]:
        yield Prompt(question, name, prefix, turn.removeprefix(prefix))


def _corrections(data: Path, name: str, *, count: int) -> Iterator[Prompt]:
    for row in list(_read_rows(data / "traces" / "grammar_jfleg.jsonl"))[:count]:
        instruction, _, text = row["prompt"].partition("\n")
        yield Prompt(row["id"], name, instruction + "\n", text.strip())


def _edits(data: Path, name: str, *, count: int) -> Iterator[Prompt]:
    """One change each to the beginning of an article, which itself predicts the answer."""
    for (article, text), wish in zip(_texts(data)[:count], cycle(_EDITS), strict=False):
        change = wish.format(word=_frequent_word(text))
        instruction = f"Rewrite this text with one change. {change}\n\n"
        yield Prompt(f"{name}-{article}", name, instruction, text, new_tokens=128, predicted=True)


def _copies(data: Path, name: str, *, count: int) -> Iterator[Prompt]:
    for (article, text), instruction in zip(_texts(data)[-count:], cycle(_COPIES), strict=False):
        yield Prompt(f"{name}-{article}", name, instruction, text, new_tokens=128)


def _texts(data: Path) -> Sequence[tuple[str, str]]:
    """Ids and beginnings of the articles that are not among the summaries."""
    articles = list(read_turns(data, "summarization"))[_SUMMARIES:]
    openings = [(article, _opening(turn.removeprefix("Summarize: "))) for article, turn in articles]
    return [(article, text) for article, text in openings if len(text.split()) <= _MOST_WORDS]


def _opening(text: str) -> str:
    """The first sentences of a text that have enough words together."""
    sentences = _SENTENCE_END.split(text)
    for end in range(1, len(sentences)):
        opening = " ".join(sentences[:end])
        if len(opening.split()) >= _FEWEST_WORDS:
            return opening
    return " ".join(sentences)


def _frequent_word(text: str) -> str:
    """The word of five letters or more that a text repeats most, the first of equals."""
    words: list[str] = re.findall(r"\b[A-Za-z]{5,}\b", text)
    return Counter(words).most_common(1)[0][0]


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    # Texts hold characters that `splitlines` would take for the end of a line.
    yield from map(json.loads, path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))


_SUMMARIES = 25

SETS: dict[str, Callable[[Path, str], Iterator[Prompt]]] = {
    "rag": partial(_questions, count=25),  # the passages stand in the prompt
    "summarization": partial(_questions, count=_SUMMARIES, prefix="Summarize: "),
    "jfleg": partial(_corrections, count=40),
    "edits": partial(_edits, count=20),
    "copying": partial(_copies, count=10),
    "translation": partial(_questions, count=10),  # the last two have nothing to copy
    "math_reasoning": partial(_questions, count=10),
}
