"""Strict numerics is held to equality of every bit; prefills are, in any numerics."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refdraft.decoder import sampler as sampler_module
from refdraft.decoder.bits import shapes_agree
from refdraft.decoder.engine import EngineConfig
from refdraft.decoder.request import DecodeRequest
from refdraft.decoder.sampling import SamplingOptions, choose
from refdraft.decoder.target import Target
from tests.decoder.conftest import Decoder, Load
from tests.decoder.drafts import PROMPT, VOCABULARY, TreeDrafter, perfect


class Logits:
    """Every row of logits that a token was chosen from, by (seed, position)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: dict[tuple[int, int], NDArray[np.float32]] = {}
        monkeypatch.setattr(sampler_module, "choose", self._choose)

    def _choose(self, scores: NDArray[np.floating], options: SamplingOptions, position: int) -> int:
        assert scores.dtype == np.float32, "the target's own logits, nothing was asked of them"
        self.rows[options.seed, position] = scores.astype(np.float32)
        return choose(scores, options, position)

    def take(self, seed: int) -> dict[int, NDArray[np.float32]]:
        taken = {position: row for (key, position), row in self.rows.items() if key == seed}
        self.rows.clear()
        return taken


@pytest.mark.parametrize("numerics", ["strict", "fast"])
def test_trees_give_the_ids_of_plain_decoding(targets: dict[int, Target], numerics: Any) -> None:
    decoder = Decoder(targets[3], EngineConfig(numerics=numerics, max_draft_tokens=15, prefill_chunk=16))
    requests = [DecodeRequest(prompt, 60) for prompt in (PROMPT, (9, 8, 7), (300, 301) * 10)]
    expected = [decoder.plain(request) for request in requests]
    stubs = {index: TreeDrafter(result.ids, index) for index, result in enumerate(expected)}
    results = decoder.run(requests, drafters=stubs)
    assert [result.output for result in results] == [result.output for result in expected]
    assert all(result.statistics and result.statistics.steps < 50 for result in results)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("one_shape", [True, False])
def test_strict_numerics_gives_the_same_bits(
    load_tiny: Load, monkeypatch: pytest.MonkeyPatch, dtype: str, temperature: float, one_shape: bool
) -> None:
    target = load_tiny(dtype=dtype)
    if not one_shape and not shapes_agree(target, 8):
        pytest.skip("this machine's kernels give a token other bits in passes of another shape")
    config = EngineConfig(numerics="strict", max_draft_tokens=7, prefill_chunk=16)
    decoder = Decoder(target, config, one_shape=one_shape)
    options = SamplingOptions(temperature=temperature, seed=77)
    request = DecodeRequest(PROMPT * 5, 40, sampling=options, documents={})
    logits = Logits(monkeypatch)
    copied = perfect(decoder, request)
    logits.take(77)
    plain = decoder.plain(request)
    expected = logits.take(77)
    assert len(expected) == 40
    other = DecodeRequest((9, 8) * 21, 40, sampling=replace(options, seed=5))
    late = DecodeRequest((300,), 60, sampling=replace(options, seed=6))
    noise = {"references": [np.random.default_rng(0).integers(0, VOCABULARY, 300).tolist()]}

    def chains(seed: int) -> object:
        return TreeDrafter(plain.ids, seed, chains=True)

    def trees(seed: int) -> object:
        return TreeDrafter(plain.ids, seed)

    def same(requests: list[DecodeRequest], position: int, arrivals: Sequence[int] = (), **drafters: object) -> None:
        stubs = {int(name[1:]): drafter for name, drafter in drafters.items()}
        result = decoder.run(requests, arrivals=arrivals, drafters=stubs)[position]
        assert result.output == plain.output
        seen = logits.take(77)
        assert seen.keys() == expected.keys()
        assert all(np.array_equal(seen[at], expected[at]) for at in expected)

    same([copied], 0)
    same([replace(request, documents=noise)], 0)
    same([request], 0, r0=chains(1))
    same([other, late, request], 2, r0=None, r1=None, r2=None)
    same([other, request, late], 1, [0, 4, 9], r0=chains(2), r1=chains(3), r2=chains(4))
    same([late, other, copied], 2, [0, 0, 2], r0=chains(5))
    same([request, late], 0, r0=trees(6), r1=trees(7))


@pytest.mark.parametrize("numerics", ["strict", "fast"])
def test_a_prompt_behind_any_neighbour_has_the_same_first_logits(
    targets: dict[int, Target], monkeypatch: pytest.MonkeyPatch, numerics: Any
) -> None:
    decoder = Decoder(targets[3], EngineConfig(numerics=numerics, max_draft_tokens=7, prefill_chunk=16))
    request = DecodeRequest(PROMPT * 10, 1, sampling=SamplingOptions(seed=77))
    neighbours = [DecodeRequest((9, 8) * 20, 30), DecodeRequest((300,) * 33, 30)]
    logits = Logits(monkeypatch)
    decoder.plain(request)
    expected = logits.take(77)
    for arrivals in ([0, 0, 0], [0, 2, 3], [0, 3, 1]):
        decoder.run([*neighbours, request], arrivals=arrivals)
        seen = logits.take(77)
        assert [row.tobytes() for row in seen.values()] == [row.tobytes() for row in expected.values()]
