"""A target whose logits are a table, drafters that read the table, and outputs drawn from both by the thousand."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from refdraft.decoder.batch import Batch
from refdraft.decoder.draft import EMPTY, Draft, Origin
from refdraft.decoder.drafter import Drafter
from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.request import Commit, DecodeRequest
from refdraft.decoder.slot import Slot
from refdraft.decoder.target import Target

VOCABULARY = 5
EOS = 0
LONGEST = 4  # output tokens
LONGEST_PROMPT = 3

_CONTEXT_LIMIT = 16  # tokens: far behind the longest output, so that drafts may reach beyond its end
_MAX_DRAFT = 6
_FAMILY = 100  # samples that share a prefill
_MOST_WAITING = 20  # families; many small ones, so that rows of all requests run side by side


class ScriptedTarget:
    """Stands in for a `Target`: logits depend on every token of the context and on its place.

    A cell of the cache holds what a key would: its token and its position, as the term that they add to the
    context's number. So a column's context is what its mask lets it see, and a token that is missing, left over,
    moved or misplaced gives the logits of another context.

    Args:
        table: float32 [contexts, vocabulary], the logits by the contexts' numbers.
        slots: rows of the cache.
    """

    vocabulary_size = VOCABULARY
    context_limit = _CONTEXT_LIMIT
    max_width = _MAX_DRAFT + 1
    cells = context_limit + max_width

    def __init__(self, table: NDArray[np.float32], *, slots: int) -> None:
        self.table, self.slots = table, slots
        self._cache = np.zeros((slots, self.cells), np.int64)

    @classmethod
    def random(cls, seed: int = 0, *, slots: int = 64) -> "ScriptedTarget":
        """A target with logits from a normal distribution, those of EOS a little lower."""
        contexts = 2 * VOCABULARY ** (LONGEST_PROMPT + LONGEST)
        table = np.random.default_rng(seed).normal(0.0, 1.3, (contexts, VOCABULARY))
        table[:, EOS] -= 0.7
        return cls(table.astype(np.float32), slots=slots)

    def logits(self, context: Sequence[int]) -> NDArray[np.float32]:
        """Float32 [vocabulary]: the logits behind a context, without a cache."""
        terms = sum(token * VOCABULARY**position for position, token in enumerate(context))
        row: NDArray[np.float32] = self.table[(terms + VOCABULARY ** len(context)) % len(self.table)]
        return row

    def run(self, batch: Batch, *, last_only: int | None = None) -> torch.Tensor:
        """One pass, as `Target.run`."""
        rows, width = batch.tokens.shape
        cache = self._cache[batch.first_slot : batch.first_slot + rows]
        np.put_along_axis(
            cache, batch.starts[:, None] + np.arange(width), batch.tokens * VOCABULARY**batch.positions, axis=1
        )
        visible = cache[:, None, : batch.mask.shape[2]] * batch.mask
        numbers = visible.sum(2) + VOCABULARY ** batch.mask.sum(2)
        logits = torch.from_numpy(self.table[numbers % len(self.table)])
        return logits if last_only is None else logits[:, last_only : last_only + 1]

    def keep(self, slot: int, start: int, path: Sequence[int]) -> None:
        """Close up the cells of an accepted path."""
        self._cache[slot, start + 1 : start + 1 + len(path)] = self._cache[slot, [start + column for column in path]]

    def copy(self, source_slot: int, goal_slot: int, length: int) -> None:
        """Copy the first cells of a row."""
        self._cache[goal_slot, :length] = self._cache[source_slot, :length]

    def clear(self, slot: int) -> None:
        """Zero a row."""
        self._cache[slot] = 0


# Parents of a draft's nodes: a chain, a fork with long arms, a bush, and one whose last nodes are its deepest.
_SHAPES = ((-1, 0, 1, 2), (-1, -1, 0, 1, 2, 3), (-1, -1, -1, 0, 0, 2), (-1, -1, 1, 1, 3))
# Ranks that a node's children take in turn: likely ones first, unlikely ones first, likely ones behind an unlikely one.
_TASTES = ((0, 1, 2), (4, 3, 2), (4, 0, 1))
KINDS = len(_SHAPES) * len(_TASTES) + 1  # the last drafts nothing


class ScriptedDrafts:
    """Drafts for every context of a target, made once each."""

    def __init__(self, target: ScriptedTarget) -> None:
        self._target = target
        self._made: dict[tuple[tuple[int, ...], int], Draft] = {}

    def draft(self, context: tuple[int, ...], kind: int) -> Draft:
        """The draft of a kind, in [0, KINDS), behind a context."""
        key = context, kind
        if key not in self._made:
            self._made[key] = self._make(context, kind)
        return self._made[key]

    def _make(self, context: tuple[int, ...], kind: int) -> Draft:
        if kind == KINDS - 1:
            return EMPTY
        parents, taste = _SHAPES[kind // len(_TASTES)], _TASTES[kind % len(_TASTES)]
        paths = {-1: context}
        for node, parent in enumerate(parents):
            ranked = np.argsort(-self._target.logits(paths[parent]), kind="stable")
            paths[node] = (*paths[parent], int(ranked[taste[parents[:node].count(parent)]]))
        tokens = tuple(paths[node][-1] for node in range(len(parents)))
        return Draft(tokens, parents, (Origin("script", 0, 0),) * len(tokens), (1.0,) * len(tokens))


class ScriptedDrafter:
    """Stands in for a `Drafter`: one kind of draft after another, whatever was accepted."""

    def __init__(self, drafts: ScriptedDrafts, prompt: Sequence[int], kind: int) -> None:
        self._drafts, self._kind, self._context = drafts, kind, tuple(prompt)

    def propose(self, limit: int) -> Draft:
        """The next draft."""
        self._kind += 1
        return self._drafts.draft(self._context, self._kind % KINDS)

    def observe(self, tokens: Sequence[int], logits: object = None) -> None:
        """Follow the output."""
        self._context += tuple(tokens)


class _StopsAfter:
    """A stop rule for outputs of a length."""

    def __init__(self, tokens: int) -> None:
        self._left = tokens

    def __call__(self, token: int) -> bool:
        self._left -= 1
        return self._left == 0


@dataclass
class Drawn:
    """How often each output came, and what became of the drafts."""

    counts: Counter[tuple[int, ...]] = field(default_factory=Counter)
    drafted: int = 0
    accepted: int = 0

    def listen(self, output: list[int], commit: Commit | Exception) -> None:
        """Hear of a sample whose tokens so far are in `output`."""
        if isinstance(commit, Exception):
            raise commit
        output += commit.tokens
        if commit.statistics:
            self.counts[tuple(output)] += 1
            self.drafted += sum(commit.statistics.drafted.values())
            self.accepted += sum(commit.statistics.accepted.values())


def draw(target: ScriptedTarget, requests: Sequence[DecodeRequest], samples: int) -> list[Drawn]:
    """Draw outputs of requests, which run together, with drafting on; of each, sample k has the seed k.

    The outputs end with EOS, or with their `LONGEST` token by a stop rule: a length limit would keep drafts short.
    """
    engine = Engine(cast("Target", target), EngineConfig(max_draft_tokens=_MAX_DRAFT, prefill_chunk=2))
    drafts, drawn = ScriptedDrafts(target), [Drawn() for _ in requests]
    for first in range(0, samples, _FAMILY):
        seeds = range(first, min(first + _FAMILY, samples))
        for request, heard in zip(requests, drawn, strict=True):
            engine.submit(*[_sample(engine, request, seed, drafts, heard) for seed in seeds])
        while len(engine.waiting) > _MOST_WAITING or (engine.busy and seeds.stop == samples):
            engine.step()
    return drawn


def _sample(engine: Engine, request: DecodeRequest, seed: int, drafts: ScriptedDrafts, heard: Drawn) -> Slot:
    request = replace(request, sampling=replace(request.sampling, seed=seed), stop=_StopsAfter(LONGEST))
    drafter = cast("Drafter", ScriptedDrafter(drafts, request.prompt, kind=seed))
    return engine.prepare(request, drafter, partial(heard.listen, []))
