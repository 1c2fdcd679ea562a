"""An answer on a terminal: copied spans in the colour of the document they come from."""

import os
from collections.abc import Mapping, Sequence
from typing import TextIO

from refdraft.controls import neutral
from refdraft.service.types import Attribution, Completion, Delta

# Bright and dark backgrounds alike: green, blue, magenta, yellow, cyan, red.
COLOURS = (32, 34, 35, 33, 36, 31)


def wants_colour(stream: TextIO) -> bool:
    """Tell whether to colour what is written to a stream: a terminal, and no NO_COLOR in the environment."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def paint(text: str, attributions: Sequence[Attribution], colours: Mapping[str, int], *, start: int = 0) -> str:
    """Colour the copied spans of a text.

    Args:
        text: a part of the output, or the whole.
        attributions: copies, with offsets into the whole output; overlaps go to the earlier span.
        colours: document id to ANSI colour; other documents stay plain.
        start: offset of `text` in the whole output, in characters.

    Returns:
        The text with escape sequences around spans, and its own control characters made visible.
    """
    safe = neutral(text)
    pieces = []
    done = 0
    for span in sorted(attributions, key=lambda span: span.output_start):
        begin, end = max(span.output_start - start, done), min(span.output_end - start, len(text))
        if begin < end and span.document_id in colours:
            pieces += [safe[done:begin], _coloured(safe[begin:end], colours[span.document_id])]
            done = end
    return "".join(pieces) + safe[done:]


class Painter:
    """Paints the deltas of one answer and remembers which document has which colour."""

    def __init__(self) -> None:
        self._colours: dict[str, int] = {}
        self._start = 0

    def paint(self, delta: Delta) -> str:
        """Return the delta's text, coloured."""
        for span in delta.attributions:
            self._colours.setdefault(span.document_id, COLOURS[len(self._colours) % len(COLOURS)])
        painted = paint(delta.text, delta.attributions, self._colours, start=self._start)
        self._start += len(delta.text)
        return painted

    def legend(self) -> str:
        """Return the documents seen so far, each in its colour; empty where nothing was copied."""
        return "  ".join(
            _coloured(f"■ {neutral(document or 'unnamed')}", colour) for document, colour in self._colours.items()
        )


def figures(completion: Completion) -> str:
    """Return one line: tokens, steps, tokens per step, and how many drafted tokens were accepted."""
    drafting = completion.drafting
    return (
        f"{completion.usage.completion_tokens} tokens in {drafting.steps} steps, "
        f"{drafting.tokens_per_step:.2f} tokens per step, "
        f"{drafting.accepted_tokens} of {drafting.drafted_tokens} drafted tokens accepted, "
        f"finish reason {completion.finish_reason}, seed {completion.seed}"
    )


def _coloured(text: str, colour: int) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m"
