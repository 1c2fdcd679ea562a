"""Strict numerics where it used to break: odd sizes and odd numbers of threads; and what tells where it would."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from refdraft.decoder import activations
from refdraft.decoder.activations import aligned
from refdraft.decoder.bits import check_bits, shapes_agree
from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.target import Target
from refdraft.errors import PreconditionError

from .families import make

ODD = 24_683  # elements of a row: no vector's multiple, and two rows are more than one thread's share


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [torch.nn.SiLU(), torch.nn.GELU(approximate="tanh"), torch.tanh])
def test_a_numbers_result_does_not_depend_on_its_place(threads: int, function: Any, dtype: torch.dtype) -> None:
    row = torch.randn(ODD, generator=torch.Generator().manual_seed(0)).to(dtype)
    alone = aligned(function, row)
    for rows in (2, 3, 7):
        together = aligned(function, row.repeat(rows, 1))
        assert together.shape == (rows, ODD)
        assert all(torch.equal(found, alone) for found in together)
    torch.testing.assert_close(alone, function(row))


def load(directory: Path) -> Target:
    make("llama", directory, intermediate_size=1028, hidden_act="silu")
    return Target.load(directory, slots=3, context_limit=64, max_width=16)


def test_odd_sizes_keep_their_bits_with_any_number_of_threads(threads: int, tmp_path: Path) -> None:
    check_bits(load(tmp_path), 13)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_odd_sizes_may_be_run_in_any_shape(threads: int, tmp_path: Path, dtype: str) -> None:
    make("llama", tmp_path, intermediate_size=1028, hidden_act="silu", max_position_embeddings=1024)
    assert shapes_agree(Target.load(tmp_path, slots=3, context_limit=800, max_width=65, dtype=dtype), 65)


def test_a_kernel_that_minds_the_shape_makes_all_passes_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsteady(self: Any, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.activation(values)
        return result * (1 + 1e-6 * values.shape[-2])

    engine = Engine(load(tmp_path), EngineConfig("strict", max_draft_tokens=12, prefill_chunk=16))
    engine.settle_shapes()
    assert not engine.one_shape
    monkeypatch.setattr(activations._Aligned, "forward", unsteady)
    engine.settle_shapes()
    assert engine.one_shape


def test_a_kernel_that_minds_the_place_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsteady(self: Any, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.activation(values)
        result[..., -1:, :] *= 1 + 1e-6  # as the end of a tensor may differ
        return result

    target = load(tmp_path)
    monkeypatch.setattr(activations._Aligned, "forward", unsteady)
    with pytest.raises(PreconditionError, match=r"strict numerics does not hold on this machine.*numerics fast"):
        check_bits(target, 13)


@pytest.mark.parametrize("limit", [2, 5, 16, 17])
def test_short_contexts_are_checked_too(tmp_path: Path, limit: int) -> None:
    make("gpt2", tmp_path, max_position_embeddings=32)
    check_bits(Target.load(tmp_path, slots=2, context_limit=limit, max_width=16), 16)
