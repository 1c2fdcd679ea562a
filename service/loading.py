"""From a configuration to a loaded target and its tokenizer."""

from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from refdraft.decoder.draft_model import DraftModel
from refdraft.decoder.engine import EngineConfig
from refdraft.decoder.target import Target
from refdraft.errors import InvalidRequestError, PreconditionError
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.config import PipelineConfig
from refdraft.service.default_model import default_model_directory

# Columns of strict passes where all must have one shape, and cost its whole width. On a CPU 16 columns cost up to seven
# single ones and 4 about two (benchmarks/numerics.py).
_STRICT_WIDTH_CPU, _STRICT_WIDTH_GPU = 4, 16


def engine_config(config: PipelineConfig, **changes: Any) -> EngineConfig:
    """How the engine shapes its passes: strict numerics where asked for, and for 16-bit weights by default."""
    device, dtype = placement(config)
    numerics: Literal["strict", "fast"] = "fast"
    if config.numerics == "strict" or (config.numerics == "auto" and dtype != "float32"):
        numerics = "strict"
    width = _STRICT_WIDTH_CPU if device == "cpu" else _STRICT_WIDTH_GPU
    return EngineConfig(numerics=numerics, **{"strict_width": width} | changes)


def load_target(
    model: str | Path | None, config: PipelineConfig, engine: EngineConfig
) -> tuple[Target, PreTrainedTokenizerBase, str]:
    """Load a checkpoint folder or hub name, or the default model for None, which is fetched and converted once.

    Returns:
        The target, its tokenizer as transformers loads it, and the model's name.

    Raises:
        NotFoundError: the model does not exist.
        PreconditionError: the model's family is not supported.
        InvalidRequestError: the device or the context limit cannot be had.
    """
    path = default_model_directory() if model is None else model
    if config.threads:
        torch.set_num_threads(config.threads)
    device, dtype = placement(config)
    target = Target.load(
        path,
        slots=config.slots,
        context_limit=config.context_limit,
        max_width=engine.widest_pass,
        dtype=dtype,
        device=device,
    )
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    return target, tokenizer, Path(path).name


def load_draft_model(config: PipelineConfig, target: Target, tokenizer: Tokenizer) -> DraftModel | None:
    """Load the draft model, if there is to be one, beside the target.

    Raises:
        NotFoundError: the model does not exist.
        PreconditionError: its family is not supported, or its tokenizer is not the target's.
    """
    if config.draft_model is None:
        return None
    own = Tokenizer(AutoTokenizer.from_pretrained(config.draft_model, trust_remote_code=False).backend_tokenizer)
    if own.fingerprint != tokenizer.fingerprint:
        raise PreconditionError(
            f"the draft model {config.draft_model} has another tokenizer than the target: name one of the same family"
        )
    device, dtype = placement(config)
    model = Target.load(
        config.draft_model,
        slots=target.slots,
        context_limit=target.context_limit,
        max_width=1,  # it writes nothing beyond the context
        dtype=dtype,
        device=device,
    )
    return DraftModel(model)


def placement(config: PipelineConfig) -> tuple[str, str]:
    """Device and type of the weights.

    Raises:
        InvalidRequestError: torch cannot use the device here.
    """
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # torch raises either, by the kind of device
        raise InvalidRequestError(f"torch cannot use {device!r} here", field="device") from error
    dtype = config.dtype
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    return device, dtype
