"""A target's cache and what it takes from a checkpoint. Its logits, family by family: test_families.py."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from refdraft.decoder.batch import Batch, Row
from refdraft.errors import InvalidRequestError, NotFoundError, PreconditionError
from tests.decoder.families import LIMIT, VOCABULARY, decode, forward, load, load_reference, make, prefill


def test_a_prefill_can_ask_for_the_logits_of_one_token(tmp_path: Path) -> None:
    target = load(make("llama", tmp_path))
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
    prefill(target, 0, prompt)
    prefill(target, 2, other)
    target.copy(0, 2, len(prompt))
    logits = decode(target, [Row(len(prompt), 7), Row(0), Row(len(prompt), 7)], 1)
    assert torch.equal(logits[0], logits[2])
    torch.testing.assert_close(logits[2, 0], forward(load_reference(tmp_path), [*prompt, 7])[-1], atol=1e-4, rtol=1e-4)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("t5", {}, "'t5' is an encoder-decoder"),
    ("bart", {}, "'bart' is an encoder-decoder"),
    ("gemma3", {}, "'gemma3' takes images or audio"),
    ("qwen2_audio", {}, "'qwen2_audio' takes images or audio"),
    ("qwen2_5_omni", {}, "'qwen2_5_omni' takes images or audio"),
    ("mamba", {}, "'mamba' keeps a running state"),
    ("rwkv", {}, "'rwkv' keeps a running state"),
    ("xlstm", {}, "'xlstm' keeps a running state"),
    ("jamba", {}, "'jamba' keeps a running state"),
    ("recurrent_gemma", {}, "'recurrent_gemma' keeps a running state"),
    ("qwen3_next", {}, "'qwen3_next' keeps a running state"),
    ("falcon_h1", {}, "'falcon_h1' keeps a running state"),
    ("lfm2", {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}, "'lfm2' keeps a running state"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "'gemma3_text' attends to later tokens"),
    ("gemma", {}, "'gemma' is not verified to be lossless; known are bloom, gemma2, "),
    ("falcon", {"alibi": True}, "'falcon' is not verified"),
]


@pytest.mark.parametrize(("family", "settings", "reason"), REFUSED, ids=[family for family, *_ in REFUSED])
def test_what_cannot_be_lossless_is_refused_with_the_reason(
    family: str, settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """By the configuration alone: no weights are there to be read."""
    AutoConfig.for_model(family, **settings).save_pretrained(tmp_path)
    with pytest.raises(PreconditionError, match=f"^model type {reason}") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


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


def test_a_sliding_window_does_not_bound_the_context(tmp_path: Path) -> None:
    make("mistral", tmp_path, sliding_window=48)
    assert load(tmp_path, context_limit=None).context_limit == 128


def test_a_window_that_the_model_does_not_know_is_ignored(tmp_path: Path) -> None:
    """As its forward ignores it; transformers' cache would heed it, so `generate` is no judge here."""
    target = load(make("llama", tmp_path, sliding_window=4))
    prompt = np.random.default_rng(5).integers(3, VOCABULARY, 30).tolist()
    expected = forward(load_reference(tmp_path), prompt)
    torch.testing.assert_close(prefill(target, 0, prompt), expected, atol=1e-4, rtol=1e-4)


def test_biases_by_distance_do_not_bound_the_context(tmp_path: Path) -> None:
    make("bloom", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["max_position_embeddings"]  # real ones have none
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load(tmp_path, context_limit=None).context_limit == 4096
    assert load(tmp_path, context_limit=5000).context_limit == 5000


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
