"""A tiny real model and tokenizer for every test, and the default model where it can be made.

The tiny model is a random Llama: its text is noise, but everything that makes decoding hard is there
(grouped queries, a byte-level BPE vocabulary, end of sequence, a chat template), and a pass takes 1 ms.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from refdraft.errors import RefdraftError
from refdraft.service.default_model import default_model_directory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCABULARY_SIZE = 512
CONTEXT_LIMIT = 1024  # tokens
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The size of the property test in tests/lossless."""
    parser.addoption(
        "--cases",
        type=int,
        metavar="N",
        help="draw N random cases in tests/lossless, by --hypothesis-seed where given (default: 2000, always the same)",
    )


@pytest.fixture(scope="session")
def tiny_tokenizer() -> "PreTrainedTokenizerFast":
    """A byte-level BPE of 512 tokens: any text round-trips, common words of Python's manual are one token."""
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((topics[name] for name in sorted(topics)[:20]), trainer)
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@pytest.fixture(scope="session")
def tiny_model_directory(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: "PreTrainedTokenizerFast") -> Path:
    """A checkpoint as a user would have one: weights, configuration, tokenizer, generation configuration."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tiny_tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_LIMIT,
        # Ten times the usual: at 0.02 the greedy output would be one token over and over.
        initializer_range=0.2,
        bos_token_id=tiny_tokenizer.bos_token_id,
        eos_token_id=tiny_tokenizer.eos_token_id,
        pad_token_id=tiny_tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    directory = tmp_path_factory.mktemp("tiny-model")
    model.save_pretrained(directory)
    tiny_tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default target's checkpoint; skips where it is not in the cache and cannot be made."""
    try:
        return default_model_directory()
    except RefdraftError as error:
        pytest.skip(f"no default model: {error}")
