"""Several samples of one prompt: one prefill, and each as if it were alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from refdraft.decoder.batch import Batch
from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.request import DecodeRequest
from refdraft.decoder.sampling import SamplingOptions
from refdraft.decoder.target import Target
from tests.decoder.conftest import Decoder, Result
from tests.decoder.drafts import PROMPT


def samples_of(prompt: Sequence[int], count: int, **changes: Any) -> list[DecodeRequest]:
    options = [SamplingOptions(temperature=1.2, seed=seed) for seed in range(count)]
    return [DecodeRequest(prompt, 4 + 7 * n % 23, sampling=option, **changes) for n, option in enumerate(options)]


def run_family(
    engine: Engine, requests: Sequence[DecodeRequest], cancelled: Sequence[int] = (), after: int = 0
) -> list[Result]:
    """Run the samples of one prompt; those named are cancelled after some steps."""
    results = [Result() for _ in requests]
    slots = [
        engine.prepare(request, engine.build_drafter(request), result.listen)
        for request, result in zip(requests, results, strict=True)
    ]
    engine.submit(*slots)
    for step in range(1000):
        if step == after:
            for sample in cancelled:
                slots[sample].cancelled = True
        if not engine.busy:
            return results
        engine.step()
    raise AssertionError("the engine does not come to an end")


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_samples_share_one_prefill_and_nothing_else(
    targets: dict[int, Target], monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    decoder = Decoder(targets[slots], EngineConfig(max_draft_tokens=32, prefill_chunk=16))
    requests = samples_of(PROMPT * 5, 7)
    expected = [decoder.plain(request).output for request in requests]
    prefills: list[int] = []
    monkeypatch.setattr(Batch, "prefill", count_calls(Batch.prefill, prefills))
    results = run_family(Engine(decoder.target, decoder.config), requests)
    assert [result.output for result in results] == expected
    assert len({tuple(ids) for ids, _ in expected}) == 7
    assert len(prefills) == 2  # 30 tokens in chunks of 16


def count_calls(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def counted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return function(*args, **options)

    return counted


@pytest.mark.parametrize("after", [0, 1, 3, 8])
@pytest.mark.parametrize("cancelled", [[0], [1, 2], [0, 1, 2, 3], [4]])
def test_samples_outlive_those_that_are_cancelled(targets: dict[int, Target], cancelled: list[int], after: int) -> None:
    decoder = Decoder(targets[2], EngineConfig(max_draft_tokens=32, prefill_chunk=16))
    requests = samples_of(PROMPT * 5, 6)
    results = run_family(Engine(decoder.target, decoder.config), requests, cancelled, after)
    for index, (request, result) in enumerate(zip(requests, results, strict=True)):
        plain = decoder.plain(request)
        if index in cancelled and result.reason is None:
            assert plain.ids[: len(result.ids)] == result.ids
        else:
            assert result.output == plain.output


def test_a_failing_sample_fails_alone(targets: dict[int, Target]) -> None:
    decoder = Decoder(targets[1], EngineConfig(max_draft_tokens=32, prefill_chunk=16))

    def stop(token: int) -> bool:
        raise LookupError("a stop rule's bug")

    requests = samples_of(PROMPT * 5, 4)
    requests[1] = replace(requests[1], stop=stop)
    results = run_family(Engine(decoder.target, decoder.config), requests)
    assert isinstance(results[1].error, LookupError)
    for sample in (0, 2, 3):
        assert results[sample].output == decoder.plain(requests[sample]).output


def test_any_number_of_samples_may_end_with_their_first_token(targets: dict[int, Target]) -> None:
    decoder = Decoder(targets[2], EngineConfig(max_draft_tokens=32, prefill_chunk=16))
    requests = [DecodeRequest(PROMPT, 1)] * 1500
    results = run_family(Engine(decoder.target, decoder.config), requests)
    assert [result.output for result in results] == [decoder.plain(requests[0]).output] * 1500
