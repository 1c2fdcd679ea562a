"""Elementwise functions whose result for a number does not depend on where in a tensor it stands.

On a CPU torch cuts a tensor into one piece a thread and runs each piece in vectors; what is left at a piece's end
is computed by scalar code, whose last bits differ. So a token's activations would depend on its column and row.
Padding to whole vectors a thread leaves nothing at the ends.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.activations import ACT2CLS
from transformers.models.bloom.modeling_bloom import BloomGelu

_VECTORS = 64  # elements: two AVX-512 registers of bfloat16, which torch's loops take at a time
_GRAIN = 32_768  # elements that torch gives a thread at least

# Each entry is a class, or a class with arguments. Those with parameters of their own are no function of one number.
_CLASSES: set[Any] = {entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()}
_ELEMENTWISE: tuple[Any, ...] = (BloomGelu, *(_CLASSES - {ACT2CLS["prelu"], ACT2CLS["xielu"]}))


def aligned(function: Callable[[torch.Tensor], torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    """Apply an elementwise function to a tensor of any shape."""
    size, threads = values.numel(), torch.get_num_threads()
    pieces = min(threads, -(-size // _GRAIN))  # gelu takes all threads at once, other functions so many
    missing = -size % (_VECTORS * math.lcm(pieces, threads)) if values.device.type == "cpu" else 0
    if missing == 0:
        return function(values)
    return function(pad(values.reshape(-1), (0, missing)))[:size].view(values.shape)


class _Aligned(torch.nn.Module):
    """An activation module, applied by `aligned`."""

    def __init__(self, activation: torch.nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return aligned(self.activation, values)


def align_activations(model: torch.nn.Module) -> None:
    """Replace a model's activation modules by aligned ones."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, _ELEMENTWISE) and not isinstance(module, _Aligned):
                setattr(module, name, _Aligned(child))
