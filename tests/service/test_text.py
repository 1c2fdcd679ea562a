"""Text that grows token by token, on any ids: also on those that no tokenizer would write."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.text import OutputText, StopStrings, find_stop, unfinished_stop

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PIECES = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "a", "b", "▁▁", "€", "ab▁", "\ufffd"]

# What byte-level tokenizers write for each byte: itself where it is printable, else a letter from U+0100 on.
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTES = {chr(byte) if byte in PRINTABLE else chr(0x100 + OTHERS.index(byte)): 2 + byte for byte in range(256)}


def byte_fallback() -> tokenizers.Tokenizer:
    """As Llama 2 and Mistral have it: bytes are tokens of their own, and the first space is stripped."""
    backend = tokenizers.Tokenizer(
        models.BPE({piece: token for token, piece in enumerate(PIECES)}, [], byte_fallback=True)
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return backend


@pytest.fixture(scope="module", params=["byte level", "byte fallback"])
def tokenizer(request: pytest.FixtureRequest, tiny_tokenizer: "PreTrainedTokenizerFast") -> Tokenizer:
    if request.param == "byte fallback":
        return Tokenizer(byte_fallback())
    return Tokenizer(tokenizers.Tokenizer.from_str(tiny_tokenizer.backend_tokenizer.to_str()))


texts = st.text(st.sampled_from("ab €é😀\ufffd\n𐍈"), max_size=20)


def check_growth(tokenizer: Tokenizer, token_ids: Sequence[int]) -> None:
    whole = tokenizer.decode(token_ids)
    output = OutputText(tokenizer)
    for count, token in enumerate(token_ids, start=1):
        before = output.text
        output.push(token)
        assert output.text.startswith(before)
        assert whole.startswith(output.text)  # so no U+FFFD is shown that the whole lacks
        assert output.token_ids == list(token_ids[:count])
        assert len(output.spans) <= count
    output.finish()
    assert output.text == whole
    assert len(output.spans) == len(token_ids)
    starts = [start for start, _ in output.spans]
    assert starts == sorted(starts)
    assert all(0 <= start <= end <= len(whole) for start, end in output.spans)
    assert "".join(whole[start:end] for start, end in sorted(set(output.spans))) == whole


def test_any_ids_grow_to_what_the_tokenizer_decodes(tiny_tokenizer: "PreTrainedTokenizerFast") -> None:
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(tiny_tokenizer.backend_tokenizer.to_str()))

    @settings(deadline=None, max_examples=300, derandomize=True)
    @given(st.lists(st.integers(0, 511), max_size=30))
    def check(token_ids: list[int]) -> None:
        check_growth(tokenizer, token_ids)

    check()


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=30))
@example([196, 130, 2, 130, 264])  # a character of two bytes, one of one byte, a byte of none, text
def test_a_byte_fallback_never_takes_back_what_was_shown(token_ids: list[int]) -> None:
    """Its decoder turns whole characters to U+FFFD when a broken one follows: here these stay as they were."""
    tokenizer = Tokenizer(byte_fallback())
    output = OutputText(tokenizer)
    for token in token_ids:
        before = output.text
        output.push(token)
        assert output.text.startswith(before)
    output.finish()
    whole = tokenizer.decode(token_ids)
    assert "\ufffd" in whole or output.text == whole
    assert output.text.endswith(whole[whole.rfind("\ufffd") + 1 :])
    assert len(output.spans) == len(token_ids)


class CountingTokenizer(Tokenizer):
    """Counts the tokens it decodes."""

    decoded = 0

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        return super().decode(ids)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    st.lists(st.sampled_from([0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 0x61, -2, -1]), max_size=90),
)
def test_broken_characters_and_special_tokens_in_any_number(values: list[int]) -> None:
    """Bytes of characters of one to four bytes, whole, broken or none, among special tokens."""
    backend = tokenizers.Tokenizer(models.BPE({"<s>": 0, "</s>": 1} | BYTES, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    check_growth(Tokenizer(backend), [2 + value if value >= 0 else -1 - value for value in values])


def test_what_is_no_text_costs_no_more_than_text(tokenizer: Tokenizer) -> None:
    for token in (0, tokenizer.encode("😀").tolist()[-1]):  # a special token, the last byte of a character
        counting = CountingTokenizer(tokenizer.backend)
        output = OutputText(counting)
        for _ in range(3000):
            output.push(token)
        output.finish()
        assert len(output.spans) == 3000
        assert counting.decoded < 3000 * 100


def test_real_text_grows_to_itself(tokenizer: Tokenizer) -> None:
    @settings(deadline=None, max_examples=200, derandomize=True)
    @given(texts)
    def check(text: str) -> None:
        check_growth(tokenizer, tokenizer.encode(text).tolist())

    check()


def test_half_a_character_is_held_back(tokenizer: Tokenizer) -> None:
    output = OutputText(tokenizer)
    *head, last = tokenizer.encode("b😀").tolist()
    for token in head:
        output.push(token)
    assert "\ufffd" not in output.text
    output.push(last)
    assert output.text.endswith("b😀")
    assert len(set(output.spans[-4:])) == 1  # its four bytes share its place
    output.push(head[-1])
    output.finish()
    assert output.text.rstrip("\ufffd").endswith("b😀")
    assert output.text.endswith("\ufffd")


def growing_text(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """What is certain after no token, one token, and so on; at last what the end makes of it."""
    output = OutputText(tokenizer)
    grown = [""]
    for token in token_ids:
        output.push(token)
        grown.append(output.text)
    output.finish()
    return [*grown, output.text]


def specified_stop(
    tokenizer: Tokenizer, token_ids: Sequence[int], stops: Sequence[str], min_tokens: int
) -> tuple[int, int | None]:
    """The tokens that are written and where their text is cut, from the definition: every place, after each token."""
    grown = growing_text(tokenizer, token_ids)
    exempt = len(grown[min(min_tokens, len(token_ids))])
    for count in range(min_tokens + 1, len(grown)):
        begins = [
            begin
            for stop in stops
            for begin in range(len(grown[count]))
            if grown[count].startswith(stop, begin) and begin + len(stop) > exempt
        ]
        if begins and len(token_ids) > min_tokens:
            return min(count, len(token_ids)), min(begins)
    return len(token_ids), None


def small_tokens(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Tokens of few characters, bytes of characters among them, in any order: whole, broken and cut off."""
    pool = sorted(
        {token for text in ("a", "b", "ab", " ", "€", "é", "😀", "\ufffd") for token in tokenizer.encode(text).tolist()}
    )
    return st.lists(st.sampled_from(pool), max_size=14) | texts.map(lambda text: tokenizer.encode(text).tolist())


stop_strings = st.lists(st.text(st.sampled_from("ab €😀\ufffd"), min_size=1, max_size=4), min_size=1, max_size=3)


def test_stop_strings_end_and_cut_as_defined(tokenizer: Tokenizer) -> None:
    @settings(deadline=None, max_examples=500, derandomize=True)
    @given(small_tokens(tokenizer), stop_strings, st.integers(0, 6))
    def check(token_ids: list[int], stops: list[str], min_tokens: int) -> None:
        written, cut = specified_stop(tokenizer, token_ids, stops, min_tokens)
        stop = StopStrings(tokenizer, stops, min_tokens)
        ended = next((count for count, token in enumerate(token_ids, start=1) if stop(token)), len(token_ids))
        assert (ended, stop.finish()) == (written, cut)
        assert stop.finish() == cut, "asked again it says the same"

    check()


@pytest.mark.parametrize(
    ("text", "stops", "min_tokens", "cut"),
    [
        ("aXb", ["X"], 0, 1),
        ("aXb", ["X"], 1, 1),
        ("aXb", ["X"], 2, None),
        ("aXbX", ["X"], 2, 3),
        ("aXYb", ["XY"], 2, 1),  # a later token completes what began before
        ("aXYb", ["XY", "X"], 2, 1),
        ("aXYb", ["X", "Yb"], 2, 2),
        ("aXXX", ["XX"], 3, 2),
    ],
)
def test_what_is_complete_within_the_first_tokens_is_text_like_any_other(
    tiny_tokenizer: "PreTrainedTokenizerFast", text: str, stops: list[str], min_tokens: int, cut: int | None
) -> None:
    tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(tiny_tokenizer.backend_tokenizer.to_str()))
    stop = StopStrings(tokenizer, stops, min_tokens)
    for character in text:
        if stop(int(tokenizer.encode(character)[0])):
            break
    assert stop.finish() == cut


def test_cut_text_has_no_token_that_it_does_not_need(tokenizer: Tokenizer) -> None:
    @settings(deadline=None, max_examples=200, derandomize=True)
    @given(texts, st.integers(0, 20))
    def check(text: str, length: int) -> None:
        output = OutputText(tokenizer)
        for token in tokenizer.encode(text).tolist():
            output.push(token)
        output.finish()
        whole = output.text
        output.cut(length)
        assert output.text == whole[:length]
        assert tokenizer.decode(output.token_ids).startswith(output.text)
        if output.token_ids:
            assert len(tokenizer.decode(output.token_ids[:-1]).rstrip("\ufffd")) <= length
        assert len(output.spans) == len(output.token_ids)

    check()


def test_a_silent_token_adds_no_text(tokenizer: Tokenizer) -> None:
    output = OutputText(tokenizer)
    *head, _ = tokenizer.encode("a😀").tolist()
    for token in head:
        output.push(token)
    output.finish()
    before = output.text
    output.push_silent(int(tokenizer.encode("b")[0]))
    assert output.text == before
    assert len(output.spans) == len(output.token_ids) == len(head) + 1


@pytest.mark.parametrize(
    ("text", "stops", "known", "at"),
    [
        ("hello", ["l", "lo"], 0, 2),
        ("hello", ["xx", "lo"], 0, 3),
        ("hello", ["z"], 0, None),
        ("", ["a"], 0, None),
        ("hello", ["l"], 3, 3),
        ("hello", ["ell", "o"], 3, 1),
        ("hello", ["ell", "o"], 4, 4),
    ],
)
def test_the_leftmost_stop_string_counts(text: str, stops: list[str], known: int, at: int | None) -> None:
    assert find_stop(text, stops, known) == at


@pytest.mark.parametrize(
    ("text", "stops", "length"),
    [("a <", ["<end>"], 1), ("a <en", ["<end>"], 3), ("a <enx", ["<end>"], 0), ("xab", ["abc", "b!"], 2), ("x", [], 0)],
)
def test_what_may_become_a_stop_string_is_known(text: str, stops: list[str], length: int) -> None:
    assert unfinished_stop(text, stops) == length
