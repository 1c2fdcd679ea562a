"""Colours for copied spans, whole or in pieces."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdraft.service.terminal import Painter, paint, wants_colour
from refdraft.service.types import Attribution, Delta


def span(start: int, end: int, document: str = "a") -> Attribution:
    return Attribution(
        output_start=start, output_end=end, document_id=document, document_start=0, document_end=end - start
    )


def plain(text: str) -> str:
    return re.sub("\x1b\\[[0-9]+m", "", text)


def test_spans_take_their_documents_colour() -> None:
    painted = paint("one two six", [span(8, 11, "b"), span(0, 3)], {"a": 31, "b": 32})
    assert painted == "\x1b[31mone\x1b[0m two \x1b[32msix\x1b[0m"


def test_overlaps_and_unknown_documents_are_harmless() -> None:
    assert paint("abcd", [span(0, 3), span(1, 4), span(0, 2)], {"a": 31}) == "\x1b[31mabc\x1b[0m\x1b[31md\x1b[0m"
    assert paint("abcd", [span(0, 4, "other")], {"a": 31}) == "abcd"


def test_an_answer_cannot_send_control_sequences() -> None:
    painted = paint("a\x1b[2Jb\tc\n", [span(0, 8)], {"a": 31})
    assert plain(painted) == "a\ufffd[2Jb\tc\n"


@given(st.text(alphabet="ab \u00e9\U0001f600", max_size=12), st.data())
def test_painting_never_changes_the_text_and_pieces_colour_the_same_characters(text: str, data: st.DataObject) -> None:
    offsets = st.integers(0, len(text))
    spans = [
        span(data.draw(offsets), data.draw(offsets), data.draw(st.sampled_from("ab")))
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    cut = data.draw(offsets)
    colours = {"a": 31, "b": 32}
    whole = paint(text, spans, colours)
    pieces = paint(text[:cut], spans, colours) + paint(text[cut:], spans, colours, start=cut)
    assert plain(whole) == plain(pieces) == text
    assert coloured_characters(pieces) == coloured_characters(whole)


def coloured_characters(painted: str) -> list[tuple[str, str]]:
    colour, characters = "", []
    for token in re.findall("\x1b\\[[0-9]+m|.", painted, re.DOTALL):
        if len(token) > 1:
            colour = token
        else:
            characters.append((token, colour))
    return characters


def test_a_painter_keeps_a_documents_colour_through_an_answer() -> None:
    painter = Painter()
    first = painter.paint(Delta(text="one ", token_ids=[1], attributions=[span(0, 3, "x")]))
    second = painter.paint(Delta(text="two one", token_ids=[2], attributions=[span(8, 11, "x")]))
    colour = first[: first.index("m") + 1]
    assert second == f"two {colour}one\x1b[0m"
    assert painter.legend() == f"{colour}■ x\x1b[0m"


def test_colour_is_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert wants_colour(Terminal())
    assert not wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_colour(Terminal())
