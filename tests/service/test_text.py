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


def test_a_stop_string_ends_the_output_at_the_token_that_completes_it(tokenizer: Tokenizer) -> None:
    @settings(deadline=None, max_examples=300, derandomize=True)
    @given(texts, st.lists(st.text(st.sampled_from("ab €😀"), min_size=1, max_size=4), min_size=1, max_size=3))
    def check(text: str, stops: list[str]) -> None:
        token_ids = tokenizer.encode(text).tolist()
        stop = StopStrings(tokenizer, stops)
        ended = next((count for count, token in enumerate(token_ids, start=1) if stop(token)), None)
        whole = tokenizer.decode(token_ids)
        output = OutputText(tokenizer)
        for token in token_ids[:ended]:
            output.push(token)
        output.finish()
        if ended is None:
            assert not any(string in whole for string in stops) or whole.endswith("\ufffd")
            return
        assert not any(string in tokenizer.decode(token_ids[: ended - 1]).rstrip("\ufffd") for string in stops)
        at = find_stop(output.text, stops)
        output.cut(at)
        assert output.text == whole[:at]
        assert not any(string in output.text for string in stops)
        assert tokenizer.decode(output.token_ids).startswith(output.text)
        if output.token_ids:  # no token more than the text needs
            assert len(tokenizer.decode(output.token_ids[:-1]).rstrip("\ufffd")) <= at
        assert len(output.spans) == len(output.token_ids)

    check()


@pytest.mark.parametrize(
    ("text", "stops", "at"),
    [("hello", ["l", "lo"], 2), ("hello", ["xx", "lo"], 3), ("hello", ["z"], 5), ("", ["a"], 0)],
)
def test_the_first_stop_string_counts(text: str, stops: list[str], at: int) -> None:
    assert find_stop(text, stops) == at


@pytest.mark.parametrize(
    ("text", "stops", "length"),
    [("a <", ["<end>"], 1), ("a <en", ["<end>"], 3), ("a <enx", ["<end>"], 0), ("xab", ["abc", "b!"], 2), ("x", [], 0)],
)
def test_what_may_become_a_stop_string_is_known(text: str, stops: list[str], length: int) -> None:
    assert unfinished_stop(text, stops) == length
