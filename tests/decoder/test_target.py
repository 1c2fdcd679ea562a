"""Slot passes against transformers' own forward without a cache, for every family that is called verified."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from refdraft.decoder.batch import Batch, Row
from refdraft.decoder.checkpoint import VERIFIED_FAMILIES
from refdraft.decoder.draft import Draft, Origin
from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.request import Commit, DecodeRequest
from refdraft.decoder.target import Target
from refdraft.errors import InvalidRequestError, NotFoundError, PreconditionError

VOCABULARY = 96
LIMIT = 64  # tokens of context
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # at the usual 0.02 all outputs would look alike
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def make(family: str, directory: Path, **changes: Any) -> Path:
    config = AutoConfig.for_model(family, **(SHAPE | {"head_dim": 8} | changes))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module", params=sorted(VERIFIED_FAMILIES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(request.param, tmp_path_factory.mktemp(request.param))


def load(checkpoint: Path, **changes: Any) -> Target:
    return Target.load(checkpoint, **({"slots": 3, "context_limit": LIMIT, "max_width": 16} | changes))


def load_reference(checkpoint: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager")
    return model.eval()


@torch.inference_mode()
def forward(reference: Any, ids: Sequence[int]) -> torch.Tensor:
    logits: torch.Tensor = reference(input_ids=torch.tensor([list(ids)]), use_cache=False).logits
    return logits[0]


def prefill(target: Target, slot: int, prompt: Sequence[int], chunk: int) -> torch.Tensor:
    """The logits behind each prompt token: float32 [tokens, vocabulary]."""
    logits = []
    for start in range(0, len(prompt), chunk):
        tokens = prompt[start : start + chunk]
        batch = Batch.prefill(slot, start, tokens, width=chunk, cells=target.cells, last_position=LIMIT - 1)
        logits.append(target.run(batch)[0, : len(tokens)])
    return torch.cat(logits)


def random_draft(rng: np.random.Generator, nodes: int, *, chain: bool) -> Draft:
    parents = tuple(node - 1 if chain else int(rng.integers(-1, node)) for node in range(nodes))
    return Draft(
        tuple(rng.integers(3, VOCABULARY, nodes).tolist()), parents, (Origin("output", 0, 0),) * nodes, (1.0,) * nodes
    )


def path_to(draft: Draft, node: int) -> list[int]:
    return [] if node < 0 else [*path_to(draft, draft.parents[node]), node]


def test_slot_passes_equal_a_forward_without_cache(checkpoint: Path) -> None:
    """Three slots of different lengths: prefill in chunks, then chains and trees of which a path is kept."""
    target, reference = load(checkpoint), load_reference(checkpoint)
    rng = np.random.default_rng(1)
    contexts = [rng.integers(3, VOCABULARY, size).tolist() for size in (5, 21, 14)]
    for slot, context in enumerate(contexts):
        torch.testing.assert_close(prefill(target, slot, context, 8), forward(reference, context), atol=1e-4, rtol=1e-4)
    for step in range(4):
        drafts = [random_draft(rng, int(rng.integers(0, 8)), chain=step == 0) for _ in contexts]
        roots = rng.integers(3, VOCABULARY, 3).tolist()
        rows = [Row(len(c), root, draft) for c, root, draft in zip(contexts, roots, drafts, strict=True)]
        cells = max(map(len, contexts)) + 9
        logits = target.run(Batch.decode(0, rows, width=9, cells=cells, last_position=LIMIT - 1))
        for slot, (context, root, draft) in enumerate(zip(contexts, roots, drafts, strict=True)):
            for node in range(-1, len(draft)):
                ids = [*context, root, *(draft.tokens[n] for n in path_to(draft, node))]
                torch.testing.assert_close(logits[slot, node + 1], forward(reference, ids)[-1], atol=1e-4, rtol=1e-4)
            kept = path_to(draft, len(draft) - 1)
            target.keep(slot, len(context), [node + 1 for node in kept])
            contexts[slot] += [root, *(draft.tokens[node] for node in kept)]


@pytest.mark.parametrize("numerics", ["fast", "strict"])
def test_greedy_output_equals_generate(checkpoint: Path, numerics: Any) -> None:
    target, reference = load(checkpoint), load_reference(checkpoint)
    prompt = [50, 61, 72, 83, 94, 50, 61, 72]
    whole = reference.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None)
    expected = whole[0, len(prompt) :].tolist()
    assert len(set(expected)) > 5
    ids: list[int] = []
    accepted: dict[str, int] = {}

    def listen(commit: Commit | Exception) -> None:
        assert isinstance(commit, Commit)
        ids.extend(commit.tokens)
        if commit.statistics:
            accepted.update(commit.statistics.accepted)

    engine = Engine(target, EngineConfig(numerics=numerics, max_draft_tokens=7, prefill_chunk=16))
    almost = [*expected[:20], 4, *expected[20:]]
    request = DecodeRequest(prompt=prompt, max_tokens=40, documents={"references": [almost]})
    engine.submit(engine.prepare(request, engine.build_drafter(request), listen))
    while engine.busy:
        engine.step()
    assert ids == expected
    assert sum(accepted.values()) > 10


def test_a_prefill_can_ask_for_the_logits_of_one_token(checkpoint: Path) -> None:
    target = load(checkpoint)
    batch = Batch.prefill(0, 0, [5, 6, 7], width=8, cells=target.cells, last_position=LIMIT - 1)
    every = target.run(batch)
    assert every.shape == (1, 8, VOCABULARY)
    last = target.run(batch, last_only=2)
    assert last.shape == (1, 1, VOCABULARY)
    torch.testing.assert_close(last[0, 0], every[0, 2], atol=1e-5, rtol=1e-5)


def test_a_copied_row_decodes_as_its_source_does(tmp_path: Path) -> None:
    """Same bits, and the goal keeps nothing of its own: what was behind the copied cells stays masked."""
    target = load(make("llama", tmp_path))
    rng = np.random.default_rng(3)
    prompt, other = (rng.integers(3, VOCABULARY, size).tolist() for size in (21, 30))
    prefill(target, 0, prompt, 8)
    prefill(target, 2, other, 8)
    target.copy(0, 2, len(prompt))
    rows = [Row(len(prompt), 7), Row(0), Row(len(prompt), 7)]
    logits = target.run(Batch.decode(0, rows, width=1, cells=target.cells, last_position=LIMIT - 1))
    assert torch.equal(logits[0], logits[2])
    torch.testing.assert_close(logits[2, 0], forward(load_reference(tmp_path), [*prompt, 7])[-1], atol=1e-4, rtol=1e-4)


def test_an_unverified_family_is_refused(tmp_path: Path) -> None:
    make("gemma", tmp_path)
    with pytest.raises(PreconditionError, match="'gemma' is not verified to be lossless; known are gpt_neox, llama"):
        load(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no model at .*nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(NotFoundError, match="no model at"):
        load(tmp_path)  # a folder without a model in it


@pytest.mark.parametrize("damage", ["no weights", "cut weights", "garbled weights", "cut config", "typeless config"])
def test_a_broken_folder_is_named(damage: str, tmp_path: Path) -> None:
    make("llama", tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    if damage == "no weights":
        weights.unlink()
    elif damage == "cut weights":
        weights.write_bytes(weights.read_bytes()[:2000])
    elif damage == "garbled weights":
        weights.write_bytes(b"no weights at all")
    elif damage == "cut config":
        config.write_text("{")
    else:
        config.write_text("{}")
    with pytest.raises(NotFoundError, match="model") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change", [{"hidden_size": 64}, {"num_hidden_layers": 3}])
def test_weights_that_do_not_fit_their_configuration_are_refused(change: dict[str, int], tmp_path: Path) -> None:
    """transformers would fill what is missing with random numbers, and answer with noise."""
    make("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(NotFoundError, match="cannot load the weights"):
        load(tmp_path)


def test_the_context_is_bounded_by_the_model(tmp_path: Path) -> None:
    make("llama", tmp_path)
    assert load(tmp_path, context_limit=None).context_limit == 128
    assert load(tmp_path, context_limit=128).context_limit == 128
    with pytest.raises(InvalidRequestError, match=r"context_limit: 129 is more than the model's 128 tokens"):
        load(tmp_path, context_limit=129)


def test_the_context_is_bounded_by_a_sliding_window(tmp_path: Path) -> None:
    make("mistral", tmp_path, sliding_window=48)
    assert load(tmp_path, context_limit=None).context_limit == 48
    with pytest.raises(InvalidRequestError, match="48 tokens"):
        load(tmp_path, context_limit=49)


def test_a_window_that_is_not_used_does_not_bound_the_context(tmp_path: Path) -> None:
    make("qwen2", tmp_path, sliding_window=48, use_sliding_window=False)
    assert load(tmp_path, context_limit=None).context_limit == 128


def test_the_context_ends_where_the_rotary_frequencies_would_change(tmp_path: Path) -> None:
    """Beyond it they depend on the longest row of a pass, so on the neighbours and on the draft's length."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 1e4}
    make("phi3", tmp_path, original_max_position_embeddings=32, rope_parameters=rope)
    assert load(tmp_path, context_limit=None).context_limit == 32
    with pytest.raises(InvalidRequestError, match="32 tokens"):
        load(tmp_path, context_limit=33)


def test_eos_ids_come_from_the_generation_config_first(tmp_path: Path) -> None:
    make("llama", tmp_path)
    assert load(tmp_path).eos_ids == {2}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    assert load(tmp_path).eos_ids == {2, 7}
