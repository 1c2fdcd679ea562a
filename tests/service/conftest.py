"""A deterministic pipeline without a model, and a real server in front of it."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass

import pytest

from refdraft.errors import (
    NotFoundError,
    OverloadedError,
    PreconditionError,
    RefdraftError,
    UnavailableError,
)
from refdraft.service.server import Server
from refdraft.service.types import (
    Attribution,
    Completion,
    Delta,
    DraftingStatistics,
    GenerateRequest,
    IndexInfo,
    ModelInfo,
    Passage,
    Retrieval,
    SourceStatistics,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from refdraft.service.validation import Limits, validate, validate_retrieval

ERRORS: dict[str, RefdraftError] = {
    "overloaded": OverloadedError("all slots are busy", retry_after_s=2.5),
    "missing": NotFoundError("no index is named moon"),
    "stale": PreconditionError("the index is of another tokenizer"),
    "leaving": UnavailableError("shutting down"),
}
LOGPROBS = (TokenLogprob(token_id=7, logprob=-0.25, top=(TopLogprob(token_id=7, logprob=-0.25),)),)


class ScriptedPipeline:
    """Repeats the prompt word by word. One word prompts are commands: an ERRORS key, "bug" or "endless".

    Sample k says every word k + 1 times, in the seed k; the samples' deltas take turns.
    """

    def __init__(self) -> None:
        self.active = 0

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[Delta | Completion, None]:
        validate(request, Limits())
        prompt = str(request.prompt)
        if prompt in ERRORS:
            raise ERRORS[prompt]
        self.active += 1
        try:
            samples = range(request.sampling.n)
            logprobs = () if request.sampling.logprobs is None else LOGPROBS
            for word in self._words(prompt):
                for sample in samples:
                    await asyncio.sleep(0.001)
                    text = word * (sample + 1)
                    yield Delta(text=text, token_ids=[len(word)], logprobs=logprobs, sample=sample)
            if prompt == "bug":
                raise KeyError("a secret")
            for sample in reversed(samples):
                yield self._completion(prompt, sample, logprobs)
        finally:
            self.active -= 1

    async def generate_samples(self, request: GenerateRequest) -> tuple[Completion, ...]:
        completions = [event async for event in self.stream(request) if isinstance(event, Completion)]
        return tuple(reversed(completions))

    async def retrieve(self, retrieval: Retrieval) -> tuple[Passage, ...]:
        validate_retrieval(retrieval, query_required=True)
        if retrieval.index != "manual":
            raise ERRORS["missing"]
        passage = Passage(
            document_id="d", title="t", text=retrieval.query or "", start=3, score=0.5, metadata={"a": "b"}
        )
        return (passage,) * retrieval.top_k

    def model_info(self) -> ModelInfo:
        return ModelInfo(
            name="scripted",
            vocabulary_size=9,
            context_limit=8192,
            dtype="float32",
            device="cpu",
            numerics="strict",
            slots=4,
            tokenizer_fingerprint="abc",
        )

    def index_infos(self) -> tuple[IndexInfo, ...]:
        return (
            IndexInfo(
                name="manual",
                documents=1,
                passages=2,
                tokens=3,
                modes=("bm25", "hybrid"),
                tokenizer_fingerprint="abc",
            ),
        )

    def _words(self, prompt: str) -> Iterator[str]:
        if prompt == "endless":
            while True:
                yield "and so on "
        yield from (word + " " for word in prompt.split())

    def _completion(self, prompt: str, sample: int = 0, logprobs: tuple[TokenLogprob, ...] = ()) -> Completion:
        words = prompt.split()
        text = "".join((word + " ") * (sample + 1) for word in words)
        return Completion(
            text=text,
            token_ids=tuple(len(word) + 1 for word in words),
            finish_reason="stop",
            usage=Usage(prompt_tokens=len(words), completion_tokens=len(words)),
            drafting=DraftingStatistics(
                steps=1,
                drafted_tokens=2,
                accepted_tokens=1,
                tokens_per_step=1.5,
                by_source={"prompt": SourceStatistics(drafted_tokens=2, accepted_tokens=1)},
            ),
            attributions=(
                Attribution(output_start=0, output_end=1, document_id="d", document_start=5, document_end=6),
            ),
            logprobs=logprobs * len(words),
            sample=sample,
            seed=(2**63 - 1 + sample) % 2**63,
        )


@dataclass(frozen=True)
class Service:
    """A running server."""

    address: str
    pipeline: ScriptedPipeline


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    """A server on its own thread, as a server in another process would be."""
    pipeline = ScriptedPipeline()
    server = Server(pipeline, port=0)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    address = asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
    yield Service(address, pipeline)
    asyncio.run_coroutine_threadsafe(server.stop(drain_s=1), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()
