"""Tiny real models in float64, so that oracle and engine agree far below any near tie: each one twice.

The engine loads a copy as it loads any checkpoint; the oracle runs the original through transformers' own forward,
without a cache, over the whole context. Both return float32 logits.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

from refdraft.decoder.target import Target

VOCABULARY = 24
CONTEXT_LIMIT = 40  # tokens; the largest, and as many positions as the models have
MAX_WIDTH = 12  # columns of a pass
NAN_ID = 5  # the token that breaks the target "nan"
_FORWARDS_KEPT = 100_000

Head = Callable[[torch.Tensor], torch.Tensor]  # what becomes of a model's logits


class TinyTarget:
    """A random model of a family.

    Args:
        family: transformers' model type.
        head: makes of the logits, in both copies, what random weights never show.
        nan_id: a token whose embedding is NaN.
        options: further fields of the model's configuration.
    """

    def __init__(self, family: str, head: Head | None = None, *, nan_id: int | None = None, **options: Any) -> None:
        self._family, self._head, self._nan_id, self._options = family, head, nan_id, options
        self._forward = lru_cache(_FORWARDS_KEPT)(self._run)

    def engine_target(self, *, slots: int, context_limit: int) -> Target:
        """The engine's copy, with a KV cache of its own."""
        return Target(self._engine_model, slots=slots, context_limit=context_limit, max_width=MAX_WIDTH)

    def forward(self, context: Sequence[int]) -> NDArray[np.float32]:
        """The logits behind a context, float32 [vocabulary], by transformers alone."""
        return self._forward(tuple(context))

    @torch.inference_mode()
    def _run(self, context: tuple[int, ...]) -> NDArray[np.float32]:
        output = self._model(input_ids=torch.tensor([context]), use_cache=False, logits_to_keep=1)
        logits: NDArray[np.float32] = output.logits[0, -1].float().numpy()
        return logits

    @cached_property
    def _model(self) -> Any:
        config = AutoConfig.for_model(self._family, **(_SHAPE | self._options))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")  # type: ignore[no-untyped-call]
        model.eval().double()
        if self._nan_id is not None:
            model.get_input_embeddings().weight.data[self._nan_id] = torch.nan
        self._attach_head(model)
        return model

    @cached_property
    def _engine_model(self) -> Any:
        with TemporaryDirectory() as directory:
            self._model.save_pretrained(directory)
            model: Any = Target.load(directory, slots=1, context_limit=None, max_width=1, dtype="float64").model
        self._attach_head(model)
        return model

    def _attach_head(self, model: Any) -> None:
        if head := self._head:
            model.get_output_embeddings().register_forward_hook(lambda module, inputs, logits: head(logits))


def _coarse(logits: torch.Tensor) -> torch.Tensor:
    """Halves only, so that exact ties abound."""
    return (logits * 2).round() / 2


def _barred(logits: torch.Tensor) -> torch.Tensor:
    """Every third token is impossible."""
    return logits.masked_fill(torch.arange(VOCABULARY) % 3 == 1, -torch.inf)


def _broken(logits: torch.Tensor) -> torch.Tensor:
    """Now and then a NaN, an infinity, or nothing finite at all, as the logits themselves decide."""
    odd, first = torch.arange(VOCABULARY) % 2 == 1, logits[..., :1]
    logits = torch.where((first > 2.2) & odd, torch.nan, logits)
    logits = torch.where((first < -2.6) & odd, torch.inf, logits)
    return torch.where((first > 1.9) & (first < 2.2), -torch.inf, logits)


_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT_LIMIT,
    "initializer_range": 0.5,  # at the usual 0.02 all outputs would look alike
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

TARGETS = {
    "llama": TinyTarget("llama"),
    "ties": TinyTarget("llama", _coarse, num_hidden_layers=1),
    "barred": TinyTarget("llama", _barred, num_hidden_layers=1),
    "broken": TinyTarget("llama", _broken, num_hidden_layers=1),
    "nan": TinyTarget("llama", nan_id=NAN_ID),
    "window": TinyTarget("mistral", sliding_window=2),
    "mixed": TinyTarget("gemma3_text", sliding_window=3, layer_types=["sliding_attention", "full_attention"]),
    "gpt2": TinyTarget("gpt2", n_embd=16, n_inner=24, n_layer=2, n_head=2, n_positions=CONTEXT_LIMIT),
}
