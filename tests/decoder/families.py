"""Tiny random-weight models of every verified family, transformers' own answers, and a plain loop over passes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from refdraft.decoder.batch import Batch, Row
from refdraft.decoder.draft import EMPTY, Draft, Origin
from refdraft.decoder.target import Target

VOCABULARY = 96
LIMIT = 96  # tokens of context
WINDOW = 4  # tokens of a sliding window: contexts are far longer, and drafts deeper
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # at the usual 0.02 all outputs would look alike
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SLIDING = {"use_sliding_window": True, "sliding_window": WINDOW}
MIXED = SLIDING | {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
# By name, which begins with the model type.
VARIANTS: dict[str, dict[str, Any]] = {
    "bloom": {"initializer_range": 0.2},
    "gemma2": MIXED | {"query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 9.0},
    "gemma3_text": MIXED | {"query_pre_attn_scalar": 24},
    "gpt2": {},
    "gpt_neox": {},
    "llama": {},
    "mistral": {"sliding_window": None},
    "mistral sliding": SLIDING,
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    "opt": {"word_embed_proj_dim": 32, "ffn_dim": 64},
    "phi3": {},
    "phi3 sliding": SLIDING,
    "qwen2": {},
    "qwen2 sliding": MIXED,
    "qwen2_moe": EXPERTS | MIXED | {"shared_expert_intermediate_size": 48},
    "qwen3": MIXED,
    "qwen3_moe": EXPERTS,
    "qwen3_moe sliding": EXPERTS | SLIDING | {"initializer_range": 0.2},
}

Propose = Callable[[int, list[int]], Draft]  # of a row and its output so far


def make(variant: str, directory: Path, **changes: Any) -> Path:
    settings = SHAPE | {"head_dim": 8} | VARIANTS.get(variant, {}) | changes
    config = AutoConfig.for_model(variant.partition(" ")[0], **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(directory)
    return directory


def load(checkpoint: Path, **changes: Any) -> Target:
    return Target.load(checkpoint, **({"slots": 3, "context_limit": LIMIT, "max_width": 16} | changes))


def load_reference(checkpoint: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager")
    return model.eval()


@torch.inference_mode()
def forward(reference: Any, ids: Sequence[int]) -> torch.Tensor:
    logits: torch.Tensor = reference(input_ids=torch.tensor([list(ids)]), use_cache=False).logits
    return logits[0]


def generate(reference: Any, prompt: Sequence[int], count: int) -> list[int]:
    whole = reference.generate(torch.tensor([list(prompt)]), max_new_tokens=count, do_sample=False, eos_token_id=None)
    ids: list[int] = whole[0, len(prompt) :].tolist()
    return ids


def prefill(target: Target, slot: int, prompt: Sequence[int], chunk: int = 8) -> torch.Tensor:
    """The logits behind each prompt token: float32 [tokens, vocabulary]."""
    logits = []
    for start in range(0, len(prompt), chunk):
        tokens = prompt[start : start + chunk]
        batch = Batch.prefill(slot, start, tokens, width=chunk, cells=target.cells, last_position=LIMIT - 1)
        logits.append(target.run(batch)[0, : len(tokens)])
    return torch.cat(logits)


def decode(target: Target, rows: Sequence[Row], width: int) -> torch.Tensor:
    """One pass over all cells: float32 [rows, width, vocabulary]."""
    return target.run(Batch.decode(0, rows, width=width, cells=target.cells, last_position=LIMIT - 1))


def draft(tokens: Sequence[int], parents: Sequence[int] | None = None) -> Draft:
    """A tree, or without `parents` a chain."""
    size = len(tokens)
    parents = range(-1, size - 1) if parents is None else parents
    return Draft(tuple(tokens), tuple(parents), (Origin("output", 0, 0),) * size, (1.0,) * size)


def random_draft(rng: np.random.Generator, nodes: int, *, chain: bool) -> Draft:
    """A chain, or a tree that is deep and branches now and then."""
    parents = [node - 1 if chain else max(-1, node - int(rng.choice([1, 1, 2, 3]))) for node in range(nodes)]
    return draft(rng.integers(3, VOCABULARY, nodes).tolist(), parents)


def path_to(tree: Draft, node: int) -> list[int]:
    return [] if node < 0 else [*path_to(tree, tree.parents[node]), node]


def decode_greedily(target: Target, prompts: Sequence[list[int]], count: int, propose: Propose) -> list[list[int]]:
    """The outputs of ragged rows that are decoded together, each with its own drafts."""
    outputs = [[int(prefill(target, slot, prompt)[-1].argmax())] for slot, prompt in enumerate(prompts)]
    while any(len(output) < count for output in outputs):
        drafts = [propose(row, output) if len(output) < count else EMPTY for row, output in enumerate(outputs)]
        lengths = [len(prompt) + len(output) - 1 for prompt, output in zip(prompts, outputs, strict=True)]
        rows = [Row(*row) for row in zip(lengths, (output[-1] for output in outputs), drafts, strict=True)]
        chosen = decode(target, rows, 1 + max(map(len, drafts))).argmax(-1).tolist()
        for row, (tree, output) in enumerate(zip(drafts, outputs, strict=True)):
            if len(output) >= count:
                continue
            path: list[int] = []
            output.append(chosen[row][0])
            while (node := tree.child(path[-1] if path else -1, output[-1])) is not None:
                path.append(node)
                output.append(chosen[row][node + 1])
            target.keep(row, lengths[row], [node + 1 for node in path])
    return [output[:count] for output in outputs]
