"""Several ways to draft for one prompt, one after the other, in one engine and on one prefill."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

from transformers import AutoTokenizer

from decoding.records import Run
from refdraft.decoder.cost import PassCost
from refdraft.decoder.drafter import Drafter
from refdraft.decoder.engine import Engine
from refdraft.decoder.request import Commit, DecodeRequest
from refdraft.decoder.target import Target
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.config import PipelineConfig
from refdraft.service.default_model import default_model_directory
from refdraft.service.loading import engine_config
from refdraft.service.variants import token_classes

CONTEXT = 3072  # tokens
DRAFT_TOKENS = 32  # at a step at most: the service's default


@dataclass(frozen=True)
class Entry:
    """One method, about to decode the prompt.

    Attributes:
        request: what is asked for; all entries of a race have the same prompt.
        build: makes what drafts, a `Drafter` or anything that proposes and observes as one does; None for nothing.
        planned: whether the planner knows what passes cost; else width is free to it, and all of a draft is verified.
    """

    request: DecodeRequest
    build: Callable[[DecodeRequest], Any] = lambda _: None
    planned: bool = True


@dataclass
class _Clock:
    """Listens to one method's commits."""

    build_seconds: float
    build_cpu_seconds: float
    times: list[tuple[float, float]] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)

    def listen(self, commit: Commit | Exception) -> None:
        if isinstance(commit, Exception):
            raise commit
        self.times.append(_now())
        self.commits.append(commit)

    @property
    def ended(self) -> bool:
        return bool(self.commits) and self.commits[-1].finish_reason is not None

    def run(self) -> Run:
        """What was heard.

        Raises:
            RuntimeError: the drafter failed, and plain decoding took its place.
        """
        statistics = self.commits[-1].statistics
        if statistics is None or statistics.drafter_faults:
            raise RuntimeError("a drafter failed: see the log")
        (start, cpu_start), (end, cpu_end) = self.times[0], self.times[-1]
        return Run(
            ids=[token for commit in self.commits for token in commit.tokens],
            seconds=self.build_seconds + end - start,
            build_seconds=self.build_seconds,
            cpu_seconds=self.build_cpu_seconds + cpu_end - cpu_start,
            steps=statistics.steps,
            drafted=sum(statistics.drafted.values()),
            accepted=sum(statistics.accepted.values()),
        )


class Course:
    """A model, ready to decode.

    Args:
        engine: with one slot; it is calibrated here.
        tokenizer: the model's, with its chat template.
        directory: the model's checkpoint.
    """

    def __init__(self, engine: Engine, tokenizer: Any, directory: Path) -> None:
        self.engine, self.tokenizer, self.directory = engine, tokenizer, directory
        self._free = PassCost()  # all passes cost the same, whatever their width
        engine.calibrate()
        self._measured = engine.cost

    @classmethod
    def load(cls, dtype: str) -> "Course":
        """The default model with "float32" or "bfloat16" weights, in the numerics that a service has with them."""
        directory = default_model_directory()
        config = engine_config(PipelineConfig(dtype=dtype, device="cpu"))
        target = Target.load(directory, slots=1, context_limit=CONTEXT, max_width=config.widest_pass, dtype=dtype)
        engine = Engine(target, config, classes=token_classes(Tokenizer.load(directory)))
        return cls(engine, AutoTokenizer.from_pretrained(directory), directory)

    def race(self, entries: Mapping[str, Entry], turn: int) -> tuple[float, dict[str, Run]]:
        """Let each entry decode, in an order that begins with another one at each turn.

        The engine takes them for samples of one prompt, which it prefills once.

        Returns:
            Seconds of the prefill, and the runs.
        """
        clocks, slots = {}, []
        first = turn % len(entries)
        order = [*islice(entries.items(), first, None), *islice(entries.items(), first)]
        for name, entry in order:
            start, cpu_start = _now()
            drafter = cast("Drafter | None", entry.build(entry.request))
            end, cpu_end = _now()
            clocks[name] = _Clock(end - start, cpu_end - cpu_start)
            slots.append(self.engine.prepare(entry.request, drafter, clocks[name].listen))
        start, _ = _now()
        self.engine.submit(*slots)
        for name, entry in order:
            self.engine.cost = self._measured if entry.planned else self._free
            while not clocks[name].ended:
                self.engine.step()
        prefill_seconds = next(iter(clocks.values())).times[0][0] - start
        return prefill_seconds, {name: clock.run() for name, clock in clocks.items()}


def _now() -> tuple[float, float]:
    """Wall clock and CPU time, in seconds."""
    return time.perf_counter(), time.process_time()
