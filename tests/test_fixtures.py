"""The fixtures' own promises: other tests would pass for no good reason without them."""

from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def greedy(directory: Path, prompt: str) -> list[int]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    ids: list[int] = output[0, inputs.input_ids.shape[1] :].tolist()
    return ids


def test_tiny_model_writes_varied_text_that_depends_on_the_prompt(tiny_model_directory: Path) -> None:
    first = greedy(tiny_model_directory, "The lambda expression")
    other = greedy(tiny_model_directory, "A class definition")
    assert len(set(first)) > 10
    assert len(set(other)) > 10
    assert first != other


def test_tiny_tokenizer_round_trips_any_text(tiny_tokenizer: "PreTrainedTokenizerFast") -> None:
    @settings(deadline=None, max_examples=50)
    @given(st.text(st.characters(codec="utf-8")))
    def check(text: str) -> None:
        assert tiny_tokenizer.decode(tiny_tokenizer.encode(text)) == text

    check()


def test_tiny_tokenizer_renders_a_chat(tiny_tokenizer: "PreTrainedTokenizerFast") -> None:
    chat = [{"role": "user", "content": "Hello"}]
    text = tiny_tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
