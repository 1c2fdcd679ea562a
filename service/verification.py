"""The comparison of drafted with plain decoding, prompt by prompt, that `refdraft verify` reports."""

import hashlib
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tqdm import tqdm

from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.request import Commit, DecodeRequest, TokenLogprob
from refdraft.decoder.sampling import SamplingOptions
from refdraft.decoder.target import Target
from refdraft.errors import InvalidRequestError

RunName = Literal["plain", "alone", "batch"]
DRAFTED_RUNS: tuple[RunName, ...] = ("alone", "batch")

_WORN = 8  # one in so many tokens of the plain output is replaced in what is drafted from
_TOP = 20  # likeliest tokens whose logits are at hand where two outputs part
_LEAD = 8  # prompt tokens that stand before the worn copy, so that the first draft finds its place


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first token at which a drafted output departs from the plain one.

    Attributes:
        token: its position in the output, from 0.
        plain, drafted: the token ids; None where that output has ended.
        plain_logits, drafted_logits: of (plain's token, drafted's token) as the plain and as the drafted run saw
            them; None for one that is not among the likeliest there.
    """

    token: int
    plain: int | None
    drafted: int | None
    plain_logits: Sequence[float | None]
    drafted_logits: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a prompt became in a run.

    `digest` stands for the bits of the logits: SHA-256 over each token's own logit, its log-probability, in which
    every logit of its row has a part, and the likeliest tokens.
    """

    prompt: str
    run: RunName
    ids: Sequence[int]
    finish_reason: str
    digest: str
    steps: int
    drafted: int
    accepted: int
    difference: Difference | None = None


class Records:
    """Outcomes by run and prompt, kept in a file of JSON lines if one is named."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        """Read what the file holds.

        Raises:
            InvalidRequestError: it holds outcomes of other settings.
        """
        self._path = path
        self._outcomes: dict[tuple[RunName, str], Outcome] = {}
        if path is None:
            return
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"settings": settings})
            return
        first, *rows = _read_whole_lines(path)
        if first != {"settings": settings}:
            raise InvalidRequestError(f"{path} holds another run; name another file", field="--records")
        for row in rows:
            difference = Difference(**row.pop("difference")) if row["difference"] else row.pop("difference")
            self._keep(Outcome(**row, difference=difference))

    def __contains__(self, key: tuple[RunName, str]) -> bool:
        return key in self._outcomes

    def get(self, run: RunName, prompt: str) -> Outcome:
        """What a prompt became in a run.

        Raises:
            KeyError: that is not known.
        """
        return self._outcomes[run, prompt]

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome."""
        self._keep(outcome)
        if self._path:
            self._append(asdict(outcome))

    def _keep(self, outcome: Outcome) -> None:
        self._outcomes[outcome.run, outcome.prompt] = outcome

    def _append(self, row: Mapping[str, Any]) -> None:
        assert self._path is not None
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _read_whole_lines(path: Path) -> list[Any]:
    """The JSON of each line, at least one; a last line that a killed run left unfinished is cut off the file."""
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    try:
        return [json.loads(line) for line in whole.split("\n")[:-1]] or [None]
    except ValueError:
        return [None]


@dataclass(slots=True)
class _Progress:
    """What was heard of one request."""

    ids: list[int]
    logprobs: list[TokenLogprob]
    last: Commit | None = None
    error: Exception | None = None

    def listen(self, commit: Commit | Exception) -> None:
        if isinstance(commit, Exception):
            self.error = commit
            return
        self.ids += commit.tokens
        self.logprobs += commit.logprobs
        self.last = commit if commit.finish_reason else None


class Verification:
    """Decodes prompts in several runs, each once.

    Args:
        target: the model; a batch fills its slots.
        config: numerics, and draft tokens a step.
        sampling: temperature and top_p; the seed is each prompt's own.
        max_tokens: of each output.
    """

    def __init__(self, target: Target, config: EngineConfig, sampling: SamplingOptions, *, max_tokens: int) -> None:
        self._target, self._config, self._sampling, self._max_tokens = target, config, sampling, max_tokens

    def decode(self, run: RunName, prompts: Mapping[str, Sequence[int]], records: Records) -> None:
        """Add the outcome of every prompt, token ids by name, to `records`; drafted runs need the plain one's.

        Raises:
            Exception: whatever ended a request early.
        """
        missing = [name for name in prompts if (run, name) not in records]
        parted: list[tuple[Outcome, _Progress]] = []
        bar = tqdm(total=len(missing), desc=run, unit="prompt", disable=not sys.stderr.isatty())
        with bar:
            for name, progress in self._run(run, {name: prompts[name] for name in missing}, records):
                outcome = _outcome(name, run, progress)
                bar.update()
                if run == "plain" or _output(records.get("plain", name)) == _output(outcome):
                    records.add(outcome)
                else:
                    parted.append((outcome, progress))
        for outcome, progress in parted:
            [(_, plainly)] = self._run("plain", {outcome.prompt: prompts[outcome.prompt]}, records)
            records.add(replace(outcome, difference=_difference(plainly, progress)))

    def _run(
        self, run: RunName, prompts: Mapping[str, Sequence[int]], records: Records
    ) -> Iterator[tuple[str, _Progress]]:
        """Decode prompts in random order, yielding each as it ends."""
        engine = Engine(self._target, self._config)
        engine.settle_shapes()
        chance = random.Random(len(prompts))
        waiting = sorted(prompts)
        chance.shuffle(waiting)
        running: dict[str, _Progress] = {}
        # Where every pass has one shape and cost, plain decoding may as well have neighbours.
        at_once = 1 if run == "alone" or (run == "plain" and not engine.one_shape) else self._target.slots
        while waiting or running:
            while waiting and len(running) < at_once and (not running or chance.random() < 0.3):
                name = waiting.pop()
                request = self._request(name, prompts[name], None if run == "plain" else records.get("plain", name))
                running[name] = _Progress([], [])
                engine.submit(engine.prepare(request, engine.build_drafter(request), running[name].listen))
            engine.step()
            for name in [name for name, progress in running.items() if progress.last or progress.error]:
                yield name, running.pop(name)

    def _request(self, name: str, prompt: Sequence[int], plain: Outcome | None) -> DecodeRequest:
        chance = random.Random(name)
        sampling = replace(self._sampling, seed=chance.getrandbits(63))
        worn: list[int] = []
        if plain:
            size = self._target.vocabulary_size
            worn = [chance.randrange(size) if chance.randrange(_WORN) == 0 else token for token in plain.ids]
        return DecodeRequest(
            prompt,
            self._max_tokens,
            sampling=sampling,
            eos_ids=self._target.eos_ids,
            top_logprobs=_TOP,
            documents={"references": [[*prompt[-_LEAD:], *worn]]},
            max_draft_tokens=self._config.max_draft_tokens if plain else 0,
        )


def _outcome(name: str, run: RunName, progress: _Progress) -> Outcome:
    if progress.error:
        raise progress.error
    assert progress.last is not None
    statistics = progress.last.statistics
    assert progress.last.finish_reason is not None
    assert statistics is not None
    return Outcome(
        prompt=name,
        run=run,
        ids=progress.ids,
        finish_reason=progress.last.finish_reason,
        digest=hashlib.sha256(repr(progress.logprobs).encode()).hexdigest()[:16],
        steps=statistics.steps,
        drafted=sum(statistics.drafted.values()),
        accepted=sum(statistics.accepted.values()),
    )


def _output(outcome: Outcome) -> tuple[list[int], str]:
    return list(outcome.ids), outcome.finish_reason


def _difference(plain: _Progress, drafted: _Progress) -> Difference:
    pairs = zip(plain.ids, drafted.ids, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain.ids), len(drafted.ids)))
    tokens = [run.ids[at] if at < len(run.ids) else None for run in (plain, drafted)]
    logits = [
        [_logit(run.logprobs[at], token) if at < len(run.logprobs) else None for token in tokens]
        for run in (plain, drafted)
    ]
    return Difference(token=at, plain=tokens[0], drafted=tokens[1], plain_logits=logits[0], drafted_logits=logits[1])


def _logit(seen: TokenLogprob, token: int | None) -> float | None:
    logprobs = {seen.token: seen.logprob, **dict(seen.top)}
    if token is None or token not in logprobs:
        return None
    return logprobs[token] - seen.logprob + seen.logit
