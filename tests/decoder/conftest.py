"""The tiny model as a target, and a way to run requests on an engine by hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from refdraft.decoder.drafter import Drafter
from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.request import Commit, DecodeRequest, DecodeStatistics, TokenLogprob
from refdraft.decoder.target import Target

CONTEXT_LIMIT = 96  # tokens: short, so that requests meet it

Load = Callable[..., Target]


@dataclass
class Result:
    """What a listener heard of one request."""

    ids: list[int] = field(default_factory=list)
    reason: str | None = None
    statistics: DecodeStatistics | None = None
    error: Exception | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def listen(self, commit: Commit | Exception) -> None:
        assert self.reason is None, "nothing comes behind the last commit"
        assert self.error is None, "nothing comes behind an error"
        if isinstance(commit, Exception):
            self.error = commit
            return
        assert len(commit.tokens) == len(commit.origins) >= 1
        assert len(commit.logprobs) in (0, len(commit.tokens))
        self.ids += commit.tokens
        self.logprobs += commit.logprobs
        self.reason, self.statistics = commit.finish_reason, commit.statistics

    @property
    def output(self) -> tuple[list[int], str | None]:
        """Ids and finish reason: what must not depend on drafting."""
        return self.ids, self.reason


class Decoder:
    """Runs requests on an engine, step by step in the caller's thread."""

    def __init__(self, target: Target, config: EngineConfig, *, one_shape: bool = True) -> None:
        self.target, self.config, self._one_shape = target, config, one_shape

    def plain(self, request: DecodeRequest) -> Result:
        """The request alone, without a draft."""
        return self.run([request], drafters={0: None})[0]

    def run(
        self,
        requests: Sequence[DecodeRequest],
        *,
        arrivals: Sequence[int] = (),
        drafters: Mapping[int, object] | None = None,
    ) -> list[Result]:
        """Run requests together.

        Args:
            requests: what to decode.
            arrivals: the step before which each request is submitted; the first step is 0.
            drafters: stands in for the drafter of the request with that index.
        """
        engine = Engine(self.target, self.config)
        engine.one_shape &= self._one_shape
        results = [Result() for _ in requests]
        late = dict(enumerate(arrivals or [0] * len(requests)))
        step = 0
        while late or engine.busy:
            for index in [i for i, arrival in late.items() if arrival <= step]:
                del late[index]
                drafter = engine.build_drafter(requests[index])
                if drafters and index in drafters:
                    drafter = cast("Drafter | None", drafters[index])
                engine.submit(engine.prepare(requests[index], drafter, results[index].listen))
            engine.step()
            step += 1
            assert step < 5000, "the engine does not come to an end"
        return results


@pytest.fixture(scope="session")
def load_tiny(tiny_model_directory: Path) -> Load:
    """Loads the tiny model with a short context, room for a strict prefill included."""

    def load(*, slots: int = 3, context_limit: int = CONTEXT_LIMIT, dtype: str = "float32") -> Target:
        return Target.load(tiny_model_directory, slots=slots, context_limit=context_limit, max_width=33, dtype=dtype)

    return load


@pytest.fixture(scope="session")
def targets(load_tiny: Load) -> dict[int, Target]:
    """Float32 targets by their number of slots."""
    return {slots: load_tiny(slots=slots) for slots in (1, 2, 3)}


@pytest.fixture(scope="session")
def decoder(targets: dict[int, Target]) -> Decoder:
    """Three slots, fast numerics, prompts in chunks of 16."""
    return Decoder(targets[3], EngineConfig(max_draft_tokens=32, prefill_chunk=16))
