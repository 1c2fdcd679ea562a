"""Reading a checkpoint: which models are taken, how much context they hold, and their weights."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from refdraft.errors import InvalidRequestError, NotFoundError, PreconditionError

# Families whose slot passes are compared with transformers' own forward in tests/decoder/test_target.py.
VERIFIED_FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "phi3", "gpt_neox"})

_DEFAULT_CONTEXT_LIMIT = 4096  # tokens; the cache of every slot is laid out for it at once


def read_config(model: str | Path) -> Any:
    """The configuration of a checkpoint folder or hub name.

    Raises:
        NotFoundError: nothing loadable is there.
        PreconditionError: the model is of a family whose exactness was not verified.
    """
    try:
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise NotFoundError(
            f"no model at {str(model)!r}: give a checkpoint folder or a hub name ({_first_line(error)})"
        ) from error
    if config.model_type not in VERIFIED_FAMILIES:
        families = ", ".join(sorted(VERIFIED_FAMILIES))
        raise PreconditionError(
            f"model type {config.model_type!r} is not verified to be lossless; known are {families}"
        )
    return config


def load_weights(model: str | Path, *, dtype: str, attention: str) -> Any:
    """The model itself, with the named attention function.

    Raises:
        NotFoundError: the weights are damaged or not all there.
    """
    try:
        with _bars_on_terminals_only():
            loading: Any = AutoModelForCausalLM.from_pretrained(
                model,
                dtype=getattr(torch, dtype),
                attn_implementation=attention,
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

    A sliding window bounds it: up to its length it is plain causal attention. So does LongRoPE, which changes
    the frequencies of a whole pass as soon as one token in it, a neighbour's or a drafted one, lies beyond the
    original length.

    Raises:
        InvalidRequestError: `wanted` is beyond it.
    """
    most = int(config.max_position_embeddings)
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        most = min(most, int(window))
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
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
