"""One case, run on the engine and judged by the oracle."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from refdraft.decoder.draft import Origin
from refdraft.decoder.drafter import Drafter
from refdraft.decoder.engine import Engine
from refdraft.decoder.request import Commit, DecodeRequest, DecodeStatistics, TokenLogprob
from refdraft.decoder.slot import Slot
from tests.lossless import oracle
from tests.lossless.cases import Ask, Case
from tests.lossless.drafters import Scripted
from tests.lossless.targets import TARGETS

_MOST_STEPS = 400


@dataclass
class Heard:
    """What a listener heard of one sample."""

    ids: list[int] = field(default_factory=list)
    origins: list[Origin | None] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: str | None = None
    error: Exception | None = None
    statistics: DecodeStatistics | None = None

    def listen(self, commit: Commit | Exception) -> None:
        """Take a commit or the error that ends all."""
        assert self.reason is None, "something comes behind the last commit"
        assert self.error is None, "something comes behind an error"
        if isinstance(commit, Exception):
            self.error = commit
            return
        assert len(commit.tokens) == len(commit.origins) >= 1
        self.ids += commit.tokens
        self.origins += commit.origins
        self.logprobs += commit.logprobs
        self.reason, self.statistics = commit.finish_reason, commit.statistics


@dataclass
class Sample:
    """One output: what is asked, what is expected, and what comes."""

    ask: Ask
    expected: oracle.Outcome
    cancel_step: int | None
    slot: Slot
    heard: Heard
    script: Scripted | None

    def judge(self, tally: Counter[str]) -> None:
        """Require that all a user can see equals plain decoding.

        Raises:
            AssertionError: it does not.
        """
        heard, expected = self.heard, self.expected
        ended = heard.reason is not None or heard.error is not None
        if self.cancel_step is not None and not ended:
            expected = replace(
                expected,
                ids=expected.ids[: len(heard.ids)],
                logprobs=expected.logprobs[: len(heard.logprobs)],
                reason=None,
                error=None,
            )
        assert heard.ids == expected.ids
        assert heard.reason == expected.reason
        assert (type(heard.error) if heard.error else None) is expected.error, heard.error
        self._judge_logprobs(expected.logprobs)
        self._judge_counts(tally)
        tally[heard.reason or (expected.error.__name__ if expected.error else "cancelled")] += 1

    def _judge_logprobs(self, expected: Sequence[oracle.Logprob]) -> None:
        assert [mine.token for mine in self.heard.logprobs] == [its.token for its in expected]
        for mine, its in zip(self.heard.logprobs, expected, strict=True):
            assert _close(mine.logit, its.logit)
            assert _close(mine.logprob, its.logprob)
            assert [token for token, _ in mine.top] == [token for token, _ in its.top]
            assert all(_close(a, b) for (_, a), (_, b) in zip(mine.top, its.top, strict=True))

    def _judge_counts(self, tally: Counter[str]) -> None:
        heard, statistics = self.heard, self.heard.statistics
        accepted = [(token, origin) for token, origin in zip(heard.ids, heard.origins, strict=True) if origin]
        tally["tokens"] += len(heard.ids)
        tally["accepted"] += len(accepted)
        if self.script:  # whose origins name their token
            assert all(origin == Origin("script", 0, token) for token, origin in accepted)
        if heard.reason is None:
            return
        assert statistics is not None
        assert sum(statistics.accepted.values()) == len(accepted) <= sum(statistics.drafted.values())
        assert statistics.steps == len(heard.ids) - 1 - len(accepted) + (heard.origins[-1] is not None)
        assert statistics.drafter_faults == (self.script is not None and self.script.faulted)
        if self.ask.drafting.kind == "none":
            assert not statistics.drafted


def _close(mine: float, its: float) -> bool:
    return mine == its or math.isclose(mine, its, rel_tol=1e-6, abs_tol=1e-6)


def try_case(case: Case, tally: Counter[str]) -> None:
    """Run a case and judge every sample of it.

    Raises:
        AssertionError: an output is not plain decoding's.
    """
    target = TARGETS[case.target].engine_target(slots=case.slots, context_limit=case.context_limit)
    engine = Engine(target, case.config)
    engine.cost = case.cost
    engine.one_shape &= case.one_shape
    groups = [[_sample(engine, case, ask, n) for n in range(len(ask.seeds))] for ask in case.asks]
    samples = [sample for group in groups for sample in group]
    arriving = {ask.arrival for ask in case.asks}
    step = 0
    while engine.busy or step <= max(arriving):
        for ask, group in zip(case.asks, groups, strict=True):
            if ask.arrival == step:
                engine.submit(*(sample.slot for sample in group))
        for sample in samples:
            sample.slot.cancelled |= sample.cancel_step == step
        engine.step()
        step += 1
        assert step < _MOST_STEPS, "the engine does not come to an end"
    for sample in samples:
        sample.judge(tally)


def _sample(engine: Engine, case: Case, ask: Ask, n: int) -> Sample:
    expected = oracle.decode(ask.sample(ask.seeds[n]), TARGETS[case.target].forward, case.context_limit)
    request: DecodeRequest = ask.sample(ask.seeds[n])
    script: Scripted | None = None
    drafter: Drafter | None = None
    if ask.drafting.kind == "own":
        drafter = engine.build_drafter(request)
    elif ask.drafting.kind != "none":
        script = Scripted(ask.drafting, [*expected.ids, *ask.guide[len(expected.ids) :]])
        drafter = cast("Drafter", script)
    heard = Heard()
    slot = engine.prepare(request, drafter, heard.listen)
    cancel = ask.cancelled[n]
    return Sample(ask, expected, None if cancel is None else ask.arrival + cancel, slot, heard, script)
