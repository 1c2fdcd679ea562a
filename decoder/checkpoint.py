"""Reading a checkpoint: which models are taken, how much context they hold, and their weights."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from refdraft.errors import InvalidRequestError, NotFoundError, PreconditionError

# Families whose slot passes are compared with transformers' own answers in tests/decoder/test_families.py.
VERIFIED_FAMILIES = frozenset(
    {
        "bloom",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "llama",
        "mistral",
        "mixtral",
        "opt",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
    }
)

_STATEFUL_LAYERS = {"linear_attention", "conv", "hybrid", "hybrid_sliding"}  # transformers' names of Mamba and its like
_STATEFUL_FAMILIES = {"rwkv", "xlstm"}  # those whose configuration names no kinds of layers
_OTHER_INPUTS = {"vision_config", "audio_config", "thinker_config"}

# Why a model is refused, by its configuration; the first that holds is told.
_REFUSALS: tuple[tuple[Callable[[Any], Any], str], ...] = (
    (lambda config: config.is_encoder_decoder, "is an encoder-decoder, and only decoders are supported"),
    (lambda config: _OTHER_INPUTS & config.sub_configs.keys(), "takes images or audio, and only text is supported"),
    (
        lambda config: (
            config.model_type in _STATEFUL_FAMILIES
            or _STATEFUL_LAYERS.intersection(getattr(config, "layer_types", None) or ())
        ),
        "keeps a running state, which cannot be rolled back when a draft is rejected",
    ),
    (
        lambda config: getattr(config, "use_bidirectional_attention", False),
        "attends to later tokens too, so it does not write one token after the other",
    ),
    (
        lambda config: config.model_type not in VERIFIED_FAMILIES,
        f"is not verified to be lossless; known are {', '.join(sorted(VERIFIED_FAMILIES))}",
    ),
)

_DEFAULT_CONTEXT_LIMIT = 4096  # tokens; the cache of every slot is laid out for it at once


def read_config(model: str | Path) -> Any:
    """The configuration of a checkpoint folder or hub name.

    Raises:
        NotFoundError: nothing loadable is there.
        PreconditionError: the model cannot be decoded with drafts, or was not verified to be; the message says why.
    """
    try:
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise NotFoundError(
            f"no model at {str(model)!r}: give a checkpoint folder or a hub name ({_first_line(error)})"
        ) from error
    for holds, reason in _REFUSALS:
        if holds(config):
            raise PreconditionError(f"model type {config.model_type!r} {reason}")
    return config


def load_weights(model: str | Path, *, dtype: str, attention: str, experts: str) -> Any:
    """The model itself, with the named attention function and, in a mixture of experts, experts function.

    Raises:
        NotFoundError: the weights are damaged or not all there.
    """
    try:
        with _bars_on_terminals_only():
            loading: Any = AutoModelForCausalLM.from_pretrained(
                model,
                dtype=getattr(torch, dtype),
                attn_implementation=attention,
                experts_implementation=experts,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise NotFoundError(f"cannot load the weights of model {str(model)!r}: {_first_line(error)}") from error
    loaded, report = loading
    if missing := sorted(report["missing_keys"]):  # transformers has filled them with random numbers
        raise NotFoundError(
            f"cannot load the weights of model {str(model)!r}: {len(missing)} are missing ({missing[0]})"
        )
    return loaded


def choose_context_limit(config: Any, wanted: int | None) -> int:
    """The context within which a token's logits depend on nothing but its past.

    LongRoPE bounds it: it changes the frequencies of a whole pass as soon as one token in it, a neighbour's or a
    drafted one, lies beyond the original length. ALiBi has no bound.

    Raises:
        InvalidRequestError: `wanted` is beyond it.
    """
    most = int(getattr(config, "max_position_embeddings", wanted or _DEFAULT_CONTEXT_LIMIT))
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in ropes.values() if "rope_type" not in ropes else [ropes]:  # one, or one for each kind of layer
        if rope["rope_type"] == "longrope":
            most = min(most, int(rope["original_max_position_embeddings"]))
    if wanted is None:
        return min(most, _DEFAULT_CONTEXT_LIMIT)
    if wanted > most:
        raise InvalidRequestError(f"{wanted} is more than the model's {most} tokens", field="context_limit")
    return wanted


@contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
    """Keep transformers' progress bars out of pipes and logs; its setting is the whole process's, so give it back."""
    hide = logging.is_progress_bar_enabled() and not sys.stderr.isatty()
    if hide:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hide:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
