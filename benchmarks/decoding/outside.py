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
        passes: list[tuple[float, float]] = []
        hook = self._model.register_forward_hook(lambda *_: passes.append((time.perf_counter(), time.process_time())))
        inputs = torch.tensor([prompt])
        output = self._model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=new_tokens, do_sample=False, **options
        )
        end, cpu_end = time.perf_counter(), time.process_time()
        hook.remove()
        start, cpu_start = passes[0]
        return Run(
            ids=output[0, len(prompt) :].tolist(),
            seconds=end - start,
            build_seconds=0.0,
            cpu_seconds=cpu_end - cpu_start,
            steps=len(passes) - 1,
            drafted=0,
            accepted=0,
        )
