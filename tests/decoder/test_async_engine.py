"""Many callers on one engine: nobody waits forever, nobody harms another."""

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
import torch

from refdraft.decoder.async_engine import AsyncEngine
from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.request import Commit, DecodeRequest
from refdraft.decoder.sampling import SamplingOptions
from refdraft.decoder.target import Target
from refdraft.errors import InvalidRequestError, OverloadedError, UnavailableError
from tests.decoder.conftest import Decoder, Load

CONFIG = EngineConfig(max_draft_tokens=32, prefill_chunk=16)
LONG = 800  # tokens: seconds of work, so that what waits for its end would be noticed


@pytest.fixture(scope="module")
def target(load_tiny: Load) -> Target:
    return load_tiny(slots=4, context_limit=1000)


@pytest.fixture
async def engine(target: Target) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(Engine(target, CONFIG), queue_limit=60)
    yield engine
    await asyncio.to_thread(engine.close)


async def stream(engine: AsyncEngine, request: DecodeRequest) -> AsyncGenerator[Commit, None]:
    with engine.place():
        async with aclosing(engine.stream([request])) as commits:
            async for _, commit in commits:
                yield commit


async def ids_of(engine: AsyncEngine, request: DecodeRequest) -> list[int]:
    return [token async for commit in stream(engine, request) for token in commit.tokens]


class Counter:
    """A stop rule that only counts the tokens committed."""

    def __init__(self) -> None:
        self.tokens = 0

    def __call__(self, token: int) -> bool:
        self.tokens += 1
        return False


async def test_fifty_requests_on_four_slots(engine: AsyncEngine, target: Target) -> None:
    requests = [
        DecodeRequest(
            (5 + n, 6, 7 + n % 3) * (1 + n % 9), 4 + n % 17, sampling=SamplingOptions(temperature=n % 2, seed=n)
        )
        for n in range(50)
    ]
    outputs = await asyncio.gather(*(ids_of(engine, request) for request in requests))
    decoder = Decoder(target, CONFIG)
    assert outputs == [decoder.plain(request).ids for request in requests]
    assert engine.running == 0


async def test_samples_of_one_prompt_equal_requests_of_their_own(engine: AsyncEngine, target: Target) -> None:
    requests = [
        DecodeRequest((5, 6, 7) * 20, 5 + 3 * n, sampling=SamplingOptions(temperature=1.0, seed=n)) for n in range(9)
    ]
    outputs: list[list[int]] = [[] for _ in requests]
    with engine.place():
        async with aclosing(engine.stream(requests)) as commits:
            async for sample, commit in commits:
                outputs[sample] += commit.tokens
    decoder = Decoder(target, CONFIG)
    assert outputs == [decoder.plain(request).ids for request in requests]


async def test_closing_a_stream_of_samples_ends_them_all(engine: AsyncEngine) -> None:
    counters = [Counter() for _ in range(9)]  # more than there are slots
    requests = [DecodeRequest((5, 6), LONG, stop=counter) for counter in counters]
    with engine.place():
        async with aclosing(engine.stream(requests)) as commits:
            async for _ in commits:
                break
    await ids_of(engine, DecodeRequest((7, 8), 5))
    seen = [counter.tokens for counter in counters]
    await ids_of(engine, DecodeRequest((7, 8), 20))
    assert [counter.tokens for counter in counters] == seen
    assert seen[4:] == [0] * 5


async def test_closing_a_stream_ends_its_decoding(engine: AsyncEngine) -> None:
    counter = Counter()
    async with aclosing(stream(engine, DecodeRequest((5, 6), LONG, stop=counter))) as commits:
        async for _ in commits:
            break
    assert engine.running == 0
    await ids_of(engine, DecodeRequest((7, 8), 5))
    seen = counter.tokens
    await ids_of(engine, DecodeRequest((7, 8), 20))
    assert counter.tokens == seen < LONG / 2


async def test_a_cancelled_task_ends_its_decoding(engine: AsyncEngine) -> None:
    counters = [Counter() for _ in range(20)]  # some of them still wait for a slot
    tasks = [asyncio.create_task(ids_of(engine, DecodeRequest((5, 6), LONG, stop=counter))) for counter in counters]
    await asyncio.sleep(0.1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert engine.running == 0
    assert len(await ids_of(engine, DecodeRequest((7, 8), 5))) == 5
    assert all(counter.tokens < LONG / 2 for counter in counters)


async def test_more_than_slots_and_queue_is_refused_until_one_ends(target: Target) -> None:
    engine = AsyncEngine(Engine(target, CONFIG), queue_limit=2)
    request = DecodeRequest((5, 6), 60, max_draft_tokens=0)
    tasks = [asyncio.create_task(ids_of(engine, request)) for _ in range(6)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="6 requests wait or run") as caught:
        await ids_of(engine, request)
    assert caught.value.retry_after_s > 0
    assert len(await tasks[0]) == 60
    assert len(await ids_of(engine, request)) == 60
    await asyncio.gather(*tasks)
    await asyncio.to_thread(engine.close)


async def test_close_ends_what_runs_and_what_waits(target: Target) -> None:
    engine = AsyncEngine(Engine(target, CONFIG), queue_limit=60)
    tasks = [asyncio.create_task(ids_of(engine, DecodeRequest((5, 6), LONG))) for _ in range(9)]
    await asyncio.sleep(0.1)
    await asyncio.to_thread(engine.close)
    errors = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    assert [type(error) for error in errors] == [UnavailableError] * 9
    with pytest.raises(UnavailableError, match="shut down"):
        await ids_of(engine, DecodeRequest((5, 6), 2))
    assert engine.running == 0


async def test_a_prompt_that_cannot_fit_is_refused(engine: AsyncEngine) -> None:
    with pytest.raises(InvalidRequestError, match="prompt: 1000 tokens; between 1 and 999 fit"):
        await ids_of(engine, DecodeRequest((5,) * 1000, 2))
    assert engine.running == 0


async def test_a_loop_that_is_closed_in_mid_request_harms_nobody(engine: AsyncEngine) -> None:
    counter = Counter()

    def abandon() -> None:
        loop = asyncio.new_event_loop()
        commits = stream(engine, DecodeRequest((5, 6), LONG, stop=counter))
        loop.run_until_complete(anext(commits))
        loop.close()

    await asyncio.to_thread(abandon)
    assert len(await ids_of(engine, DecodeRequest((7, 8), 40))) == 40
    gc.collect()
    while engine.running:  # in the worst case until the abandoned request has written all it was asked for
        await asyncio.sleep(0.05)


async def test_a_failed_pass_fails_what_runs_and_spares_what_waits(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = AsyncEngine(Engine(target, CONFIG), queue_limit=60)
    run, calls = target.run, 0

    def fail_once(*args: Any, **options: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 30:
            raise RuntimeError("the device is lost")
        return run(*args, **options)

    monkeypatch.setattr(target, "run", fail_once)
    request = DecodeRequest((5, 6), 40, max_draft_tokens=0)
    tasks = [asyncio.create_task(ids_of(engine, request)) for _ in range(6)]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(outcome, RuntimeError) for outcome in outcomes) == 4
    assert [outcome for outcome in outcomes if isinstance(outcome, list)] == [
        Decoder(target, CONFIG).plain(request).ids
    ] * 2
    await asyncio.to_thread(engine.close)


async def test_requests_of_several_loops_share_the_engine(engine: AsyncEngine) -> None:
    request = DecodeRequest((5, 6, 5, 6), 30)
    expected = await ids_of(engine, request)
    drafted = replace(request, documents={"references": [[5, 6, *expected]]})

    def run() -> list[int]:
        return asyncio.run(ids_of(engine, drafted))

    assert await asyncio.gather(*(asyncio.to_thread(run) for _ in range(8))) == [expected] * 8
