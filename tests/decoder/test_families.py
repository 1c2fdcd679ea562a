"""Slot passes against transformers' own forward and `generate`, for every family that is called verified."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import Cache

from refdraft.decoder.batch import Row
from refdraft.decoder.checkpoint import VERIFIED_FAMILIES
from refdraft.decoder.draft import Draft
from tests.decoder.families import (
    LIMIT,
    VARIANTS,
    VOCABULARY,
    decode,
    decode_greedily,
    draft,
    forward,
    generate,
    load,
    load_reference,
    make,
    path_to,
    prefill,
    random_draft,
)

WIDTH = 9  # columns of a pass
COUNT = 30  # tokens of an output


@pytest.fixture(scope="module", params=VARIANTS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(request.param, tmp_path_factory.mktemp(request.param.replace(" ", "-")))


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Any:
    return load_reference(checkpoint)


def test_every_verified_family_is_tested() -> None:
    assert {variant.partition(" ")[0] for variant in VARIANTS} == VERIFIED_FAMILIES


def test_slot_passes_equal_a_forward_without_cache(checkpoint: Path, reference: Any) -> None:
    """Three slots of different lengths: prefill in chunks, then chains and trees of which a path is kept."""
    target = load(checkpoint)
    rng = np.random.default_rng(1)
    contexts = [rng.integers(3, VOCABULARY, size).tolist() for size in (5, 45, 22)]
    for slot, context in enumerate(contexts):
        torch.testing.assert_close(prefill(target, slot, context), forward(reference, context), atol=1e-4, rtol=1e-4)
    for step in range(4):
        drafts = [random_draft(rng, int(rng.integers(0, WIDTH)), chain=step == 0) for _ in contexts]
        roots = rng.integers(3, VOCABULARY, 3).tolist()
        rows = [Row(len(context), *row) for context, *row in zip(contexts, roots, drafts, strict=True)]
        logits = decode(target, rows, WIDTH)
        for slot, (context, root, tree) in enumerate(zip(contexts, roots, drafts, strict=True)):
            for leaf in set(range(-1, len(tree))) - set(tree.parents):
                path = path_to(tree, leaf)
                expected = forward(reference, [*context, root, *(tree.tokens[node] for node in path)])
                columns = [0, *(node + 1 for node in path)]
                torch.testing.assert_close(logits[slot, columns], expected[len(context) :], atol=1e-4, rtol=1e-4)
            kept = path_to(tree, len(tree) - 1)
            target.keep(slot, len(context), [node + 1 for node in kept])
            contexts[slot] += [root, *(tree.tokens[node] for node in kept)]


PROMPTS = [np.random.default_rng(size).integers(3, VOCABULARY, size).tolist() for size in (3, LIMIT - COUNT, 20)]


@pytest.fixture(scope="module")
def expected(reference: Any) -> list[list[int]]:
    return [generate(reference, prompt, COUNT) for prompt in PROMPTS]


@pytest.mark.parametrize("shape", ["none", "chain", "tree"])
def test_greedy_output_equals_generate(checkpoint: Path, expected: list[list[int]], shape: str) -> None:
    """Drafts hold the true continuation up to a place, among noise; one context ends at the limit."""
    assert all(len(set(ids)) > 5 for ids in expected)
    rng = np.random.default_rng(2)
    rounds = 0

    def propose(row: int, output: list[int]) -> Draft:
        nonlocal rounds
        rounds += row == 0
        if shape == "none":
            return draft([])
        true = expected[row][len(output) : len(output) + int(rng.integers(0, 6))]
        noise = rng.integers(3, VOCABULARY, 2).tolist()
        if shape == "chain":
            return draft([*true, *noise])
        # The true path hangs from the root beside the noise, in columns behind it.
        return draft([*noise, *true], [-1, 0, *(-1 if at == 0 else at + 1 for at in range(len(true)))])

    assert decode_greedily(load(checkpoint), PROMPTS, COUNT, propose) == expected
    assert rounds == COUNT - 1 if shape == "none" else rounds < COUNT / 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_passes_of_one_shape_give_the_same_bits(checkpoint: Path, dtype: str) -> None:
    """A chain in any slot, among any neighbours, against steps without a draft in the first slot, alone."""
    width, length = 16, 21
    target = load(checkpoint, dtype=dtype)
    rng = np.random.default_rng(4)
    context, tokens = (rng.integers(3, VOCABULARY, size).tolist() for size in (length, width))
    prefill(target, 0, context)
    plain = [decode(target, [Row(length + at, tokens[at]), Row(0), Row(0)], width)[0, 0] for at in range(width)]
    for slot in (0, 1, 2, 2):
        true = int(rng.integers(1, width + 1))
        noise = rng.integers(3, VOCABULARY, width - true).tolist()
        rows = [Row(length, 9, random_draft(rng, int(rng.integers(0, width)), chain=False)) for _ in range(3)]
        rows[slot] = Row(length, tokens[0], draft([*tokens[1:true], *noise]))
        for other in range(3):
            prefill(target, other, context if other == slot else rng.integers(3, VOCABULARY, length).tolist())
        logits = decode(target, rows, width)[slot]
        assert all(map(torch.equal, logits[:true], plain[:true])), (slot, true)


def test_a_layer_with_one_output_does_not_mind_the_row(tmp_path: Path) -> None:
    """The gate of Qwen2-MoE's shared expert; in the tiny models above it is too small to show what it does."""
    target = load(make("qwen2_moe", tmp_path, hidden_size=256))
    gates = [m for m in target.model.modules() if isinstance(m, torch.nn.Linear) and m.out_features == 1]
    assert gates
    with torch.inference_mode():
        for states in torch.randn(20, 256, generator=torch.Generator().manual_seed(0)):
            outputs = gates[0](states.repeat(27, 1))
            assert torch.equal(outputs, outputs[:1].expand(27, 1))
            torch.testing.assert_close(outputs[0], gates[0].weight[0] @ states[:, None])


def break_embedding(monkeypatch: pytest.MonkeyPatch, model: Any, token: int) -> None:
    model.get_input_embeddings().weight.data[token] = torch.nan


def break_keys(monkeypatch: pytest.MonkeyPatch, model: Any, token: int) -> None:
    """Make a token's keys infinite, as where float16 overflows; its hidden states stay finite."""
    passes: list[torch.Tensor] = []
    model.get_input_embeddings().register_forward_pre_hook(lambda module, inputs: passes.append(inputs[0]))

    def update(cache: Cache, keys: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return healthy(cache, keys.masked_fill((passes[-1] == token)[:, None, :, None], torch.inf), *args, **kwargs)

    healthy = Cache.update
    monkeypatch.setattr(Cache, "update", update)


HARMLESS, HARMFUL = 5, 7
TREE = (-1, 0, -1, 2, 1, 2)  # parents


@pytest.mark.parametrize("fault", [break_embedding, break_keys])
def test_a_draft_that_is_not_finite_touches_nobody(checkpoint: Path, fault: Any) -> None:
    """Neither in its own pass nor in later ones, wherever it stands."""
    target = load(checkpoint)
    rng = np.random.default_rng(3)
    contexts = [rng.integers(8, VOCABULARY, size).tolist() for size in (9, 30, 17)]
    for slot, context in enumerate(contexts):
        prefill(target, slot, context)
    tokens = rng.integers(8, VOCABULARY, 6).tolist()

    def passes(tree: Draft, node: int) -> list[torch.Tensor]:
        first = decode(target, [Row(9, 20), Row(30, 21, tree), Row(17, 22, draft([33, 44]))], WIDTH)
        assert first[1, node + 1].isnan().all() == (tree.tokens[node] == HARMFUL)
        untouched = [0, *(other + 1 for other in range(6) if node not in path_to(tree, other))]
        later = [decode(target, [Row(10, 23), Row(31, 24, draft([50] * size)), Row(18, 25)], WIDTH) for size in (0, 7)]
        return [first[0], first[1, untouched], first[2], *later]

    with pytest.MonkeyPatch.context() as monkeypatch:
        fault(monkeypatch, target.model, HARMFUL)
        for parents, node in [(None, 0), (None, 3), (None, 5), (TREE, 0), (TREE, 2), (TREE, 5)]:
            tokens[node] = HARMLESS
            expected = passes(draft(tokens, parents), node)
            tokens[node] = HARMFUL
            seen = passes(draft(tokens, parents), node)
            assert all(map(torch.equal, seen, expected)), (parents, node)
            tokens[node] = HARMLESS
        alone = decode(target, [Row(9, HARMFUL), Row(30, 21), Row(17, 22)], 1)
    assert alone[0].isnan().all()  # plain decoding, whose request fails as a drafted one does
    assert alone[1:].isfinite().all()


def test_a_prompt_shows_what_is_not_finite_and_its_padding_does_not(checkpoint: Path) -> None:
    target = load(checkpoint)
    harmless = prefill(target, 0, [20, 21, 22], chunk=4)
    with pytest.MonkeyPatch.context() as monkeypatch:
        break_embedding(monkeypatch, target.model, 0)  # the token that pads
        assert torch.equal(prefill(target, 0, [20, 21, 22], chunk=4), harmless)
        break_embedding(monkeypatch, target.model, HARMFUL)
        assert prefill(target, 0, [20, 21, HARMFUL, 22, 23], chunk=4)[2:].isnan().all()
