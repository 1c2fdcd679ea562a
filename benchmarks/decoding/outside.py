"""transformers' own `generate`, as a reference from outside the engine."""

import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from decoding.records import Run


class Generate:
    """transformers' greedy `generate` in float32.

    Args:
        directory: the model's checkpoint.
    """

    def __init__(self, directory: Path) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def run(self, prompt: list[int], new_tokens: int, **options: Any) -> Run:
        """Decode a prompt; the clock starts behind the first pass, the prefill.

        Prompt lookup may commit more than one token in that pass, which counts in its favour.
        """
        passes: list[float] = []
        hook = self._model.register_forward_hook(lambda *_: passes.append(time.perf_counter()))
        inputs = torch.tensor([prompt])
        output = self._model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=new_tokens, do_sample=False, **options
        )
        seconds = time.perf_counter() - passes[0]
        hook.remove()
        return Run(output[0, len(prompt) :].tolist(), seconds, 0.0, len(passes) - 1, 0, 0)
