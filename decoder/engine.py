"""The engine: several requests in one batch, each step one forward pass.

Single-threaded and free of I/O; `async_engine.py` gives it a thread and an asyncio face.
"""

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.batch import BLOCK, Batch, Row, round_up
from refdraft.decoder.bits import check_bits, shapes_agree
from refdraft.decoder.constraint import permitted
from refdraft.decoder.cost import PassCost, measure_passes, measure_strict_pass
from refdraft.decoder.draft import EMPTY, Draft, Origin
from refdraft.decoder.draft_model import DraftModel, Guesser
from refdraft.decoder.drafter import Drafter
from refdraft.decoder.odds import SurvivalOdds
from refdraft.decoder.planner import Plan, plan_pass
from refdraft.decoder.request import Commit, DecodeRequest, DecodeStatistics, FinishReason, TokenLogprob
from refdraft.decoder.sampler import Sampler
from refdraft.decoder.slot import Family, Listener, Slot
from refdraft.decoder.target import Target
from refdraft.decoder.verify import verify
from refdraft.errors import InvalidRequestError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine shapes its passes.

    Attributes:
        numerics: "strict" gives logits that are bit-identical with and without drafts. It verifies chains only: a
            branch lies in other cells of the cache than plain decoding's token would, and float sums mind their
            order. And where the bits of a token depend on the shape of its pass, all passes have one; see
            `Engine.settle_shapes`. "fast" verifies trees, in the cheapest shapes.
        max_draft_tokens: drafted tokens a row at most, whatever a request asks for.
        prefill_chunk: prompt tokens a prefill pass; decode steps of the others run between the chunks.
        strict_width: columns of a decode pass at most where strict numerics needs one shape, which costs its whole
            width at every step.
    """

    numerics: Literal["strict", "fast"] = "fast"
    max_draft_tokens: int = 64
    prefill_chunk: int = 512
    strict_width: int = 16

    @property
    def widest_pass(self) -> int:
        """Columns that a pass may have beyond a slot's context, padding included."""
        decode = self.max_draft_tokens + 1
        return max(decode, self.prefill_chunk) if self.numerics == "strict" else decode


class Engine:
    """Admits requests to slots and advances all of them step by step.

    Args:
        target: the model; the engine owns its KV cache.
        config: how passes are shaped.
        classes: int32 [vocabulary], which tokens may stand for one another where a span begins; see `Drafter`.
        draft_model: a small model that is asked too what may come next.

    Raises:
        ValueError: the target's cache leaves no room for the widest pass.
    """

    def __init__(
        self,
        target: Target,
        config: EngineConfig = EngineConfig(),
        *,
        classes: NDArray[np.int32] | None = None,
        draft_model: DraftModel | None = None,
    ) -> None:
        if target.max_width < config.widest_pass:
            raise ValueError(f"the target must leave room for passes of {config.widest_pass} columns")
        self.target, self.config = target, config
        self.one_shape = config.numerics == "strict"  # until `settle_shapes` finds that any will do
        self.cost = PassCost()
        self.odds = SurvivalOdds()
        self._draft_model = draft_model
        every = np.arange(1, target.vocabulary_size + 1, dtype=np.int32)  # no token stands for another
        self._classes = every if classes is None else classes[: target.vocabulary_size]
        self.waiting: deque[Slot] = deque()
        self._slots: list[Slot | None] = [None] * target.slots

    @property
    def busy(self) -> bool:
        """Whether a request is waiting or running."""
        return bool(self.waiting) or any(self._slots)

    def build_drafter(self, request: DecodeRequest) -> Drafter | None:
        """The request's drafter; None where drafting is off or its sources are at fault. Safe in any thread."""
        if request.max_draft_tokens == 0:
            return None
        try:
            return Drafter(
                request.prompt,
                request.documents,
                output_room=min(request.max_tokens, self.target.context_limit - len(request.prompt)),
                classes=self._classes,
                odds=self.odds,
                options=request.drafting,
                branching=self.config.numerics == "fast",
                guesser=self._open_guesser(request),
                corpus=request.corpus,
            )
        except Exception:
            log.exception("building a drafter failed; the request is decoded plainly")
            return None

    def _open_guesser(self, request: DecodeRequest) -> Guesser | None:
        if self._draft_model is None or not request.drafting.ask_model:
            return None
        return self._draft_model.open(request.prompt)

    def check(self, request: DecodeRequest) -> None:
        """Refuse what can never be decoded. Safe in any thread.

        Raises:
            InvalidRequestError: the prompt is empty or does not fit the context.
        """
        if not 0 < len(request.prompt) < self.target.context_limit:
            raise InvalidRequestError(
                f"{len(request.prompt)} tokens; between 1 and {self.target.context_limit - 1} fit the context",
                field="prompt",
            )

    def prepare(self, request: DecodeRequest, drafter: Drafter | None, listener: Listener) -> Slot:
        """Check a request and make its slot, not queued yet. Safe in any thread.

        `listener` will be called with every `Commit`, and with an exception if one ends the request.

        Raises:
            InvalidRequestError: as `check`, or an option names a token id beyond the vocabulary.
        """
        self.check(request)
        return Slot(request, listener, drafter, Sampler(request, self.target.vocabulary_size))

    def submit(self, *samples: Slot) -> None:
        """Queue prepared requests; several must have one and the same prompt, which is prefilled once."""
        family = Family(deque(samples))
        for sample in samples:
            sample.family = family
        self.waiting.append(family.waiting.popleft())

    def step(self) -> None:
        """Admit what fits, prefill one chunk of one request, and run one decode pass for all others."""
        self._drop_cancelled()
        self._admit()
        self._prefill()
        self._decode()

    def fail_all(self, error: Exception, *, waiting: bool = False) -> None:
        """End every running request, and with `waiting` every waiting one, with `error`."""
        failed = [slot for slot in self._slots if slot]
        self._slots = [None] * len(self._slots)
        if waiting:
            failed += self.waiting
            self.waiting.clear()
        for slot in failed:
            while sample := slot.family.next():
                sample.listener(error)
            slot.listener(error)

    def settle_shapes(self) -> None:
        """Find out what strict numerics takes on this machine: any shapes will do, or one for all passes.

        Raises:
            PreconditionError: strict numerics does not hold with this target on this machine.
        """
        if self.config.numerics == "strict":
            self.one_shape = not shapes_agree(self.target, self.config.max_draft_tokens + 1)
        if self.one_shape:
            check_bits(self.target, self._widest)

    def calibrate(self) -> None:
        """Settle shapes, and measure what passes cost, if anything may be drafted.

        Raises:
            PreconditionError: as `settle_shapes`.
        """
        self.settle_shapes()
        if self.one_shape:
            self.cost = measure_strict_pass(self.target, self._widest)
        elif self._widest > 1:
            self.cost = measure_passes(self.target, self._widest)

    @property
    def _widest(self) -> int:
        """Columns of a decode pass at most."""
        wanted = self.config.max_draft_tokens + 1
        return min(wanted, self.config.strict_width) if self.one_shape else wanted

    def _drop_cancelled(self) -> None:
        heirs = (slot.family.next() if slot.cancelled else slot for slot in self.waiting)
        self.waiting = deque(slot for slot in heirs if slot)
        for index, slot in enumerate(self._slots):
            if slot and slot.cancelled:
                self._release(index, slot)

    def _admit(self) -> None:
        """Fill free slots, and start the samples whose prompt is in the cache already."""
        for index in range(len(self._slots)):
            while True:
                slot = self._slots[index] = self._slots[index] or self._next(index)
                if slot is None or slot.family.logits is None or slot.token is not None:
                    break
                self._commit(index, slot, EMPTY, slot.family.logits[None])  # and with it the output may end

    def _next(self, index: int) -> Slot | None:
        """What a free slot goes to: a sample whose prompt another slot has in the cache, else the next request."""
        for source, slot in enumerate(self._slots):
            if slot and slot.family.logits is not None and (sample := slot.family.next()):
                self.target.copy(source, index, len(sample.request.prompt))
                sample.cached = len(sample.request.prompt)
                return sample
        return self.waiting.popleft() if self.waiting else None

    def _release(self, index: int, slot: Slot) -> None:
        """Free a slot, or leave it with the keys and values of the prompt to the next sample of its family."""
        self._slots[index] = None
        if not (sample := slot.family.next()):
            return
        if slot.family.logits is None:
            self.waiting.appendleft(sample)
        else:
            sample.cached, self._slots[index] = len(sample.request.prompt), sample

    def _prefill(self) -> None:
        """Run the next chunk of the first prefilling slot.

        Chunks begin at multiples of the chunk size, so a prompt's keys and values do not depend on what else runs.
        """
        unready = ((i, slot) for i, slot in enumerate(self._slots) if slot and slot.family.logits is None)
        index, slot = next(unready, (0, None))
        if slot is None:
            return
        chunk = slot.request.prompt[slot.cached : slot.cached + self.config.prefill_chunk]
        width = self.config.prefill_chunk if self.one_shape else len(chunk)
        batch = Batch.prefill(
            index,
            slot.cached,
            chunk,
            width=width,
            cells=round_up(slot.cached + width, self._block),
            last_position=self.target.context_limit - 1,
        )
        logits = self.target.run(batch, last_only=len(chunk) - 1).cpu().numpy()
        slot.cached += len(chunk)
        if slot.cached == len(slot.request.prompt):
            slot.family.logits = logits[0, 0]
            self._commit(index, slot, EMPTY, logits[0])

    def _decode(self) -> None:
        active = {i: slot for i, slot in enumerate(self._slots) if slot and slot.token is not None}
        if not active:
            return
        first, last = (0, len(self._slots) - 1) if self.one_shape else (min(active), max(active))
        drafts, plan = self._draft(active, last - first + 1)
        rows = [self._row(index, drafts.get(index, EMPTY)) for index in range(first, last + 1)]
        cells = round_up(max(row.length for row in rows) + plan.width, self._block)
        start = time.perf_counter()
        logits = self.target.run(self._batch(first, rows, plan.width, cells)).cpu().numpy()
        self.cost.observe(len(rows), plan.width, cells, time.perf_counter() - start)
        for (index, slot), price in zip(active.items(), plan.prices, strict=True):
            generated = slot.generated
            slot.statistics.steps += 1
            self._commit(index, slot, drafts[index], logits[index - first])
            slot.stake.settle(slot.generated - generated - 1, price)

    @property
    def _block(self) -> int:
        """What the cells that a pass reads are a multiple of."""
        if self.one_shape:
            return self.target.cells
        return BLOCK if self.config.numerics == "strict" else 1

    def _row(self, index: int, draft: Draft) -> Row:
        slot = self._slots[index]
        return Row(slot.cached, slot.token, draft) if slot else Row(0)

    def _batch(self, first: int, rows: Sequence[Row], width: int, cells: int) -> Batch:
        return Batch.decode(first, rows, width=width, cells=cells, last_position=self.target.context_limit - 1)

    def _draft(self, active: dict[int, Slot], rows: int) -> tuple[dict[int, Draft], Plan]:
        """A draft for every active slot, and the shape of a pass of `rows` rows that the planner finds best."""
        start = time.perf_counter()
        proposals = {index: self._propose(slot) for index, slot in active.items()}
        drafting_s = time.perf_counter() - start
        widest = self._widest
        widths = np.arange(widest if self.one_shape else 1, widest + 1)
        cells = round_up(max(slot.cached for slot in active.values()) + widths, self._block)
        seconds = self.cost(rows, widths, cells)
        survivals = [draft.survivals for draft in proposals.values()]
        plan = plan_pass(survivals, widths, seconds, hope=self.cost.hope(rows, widths), drafting_s=drafting_s)
        return {index: draft.head(plan.width - 1) for index, draft in proposals.items()}, plan

    def _propose(self, slot: Slot) -> Draft:
        limit = min(self._widest - 1, slot.draft_room(self.target.context_limit))
        if slot.drafter is None or limit <= 0 or slot.stake.resting:
            return EMPTY
        try:
            return self._restrict(slot.drafter.propose(limit).head(limit), slot)
        except Exception:
            self._disable_drafter(slot)
            return EMPTY

    def _restrict(self, draft: Draft, slot: Slot) -> Draft:
        """The part of a draft that can be verified: a drafter is trusted with nothing but speed.

        Raises:
            ValueError: an origin or a survival is none.
        """
        if not all(isinstance(origin, Origin) for origin in draft.origins):
            raise ValueError("a draft's origins must be of type Origin")
        if not all(0.0 <= survival <= 1.0 for survival in draft.survivals):
            raise ValueError("a draft's survivals must lie in [0, 1]")
        draft = draft.pruned([0 <= token < self.target.vocabulary_size for token in draft.tokens])
        if self.config.numerics == "strict":
            draft = draft.trunk()
        return permitted(draft, slot.request.constraint) if slot.request.constraint else draft

    def _disable_drafter(self, slot: Slot) -> None:
        log.exception("a drafter failed; its request goes on with plain decoding")
        slot.drafter = None
        slot.statistics.drafter_faults += 1

    def _commit(self, index: int, slot: Slot, draft: Draft, logits: NDArray[np.float32]) -> None:
        """Verify `draft` against `logits` (float32 [columns, vocabulary]) and commit up to the first stop.

        What fails in between, logits or a stop rule, ends this request alone, behind the tokens before it.
        """
        sampler = slot.sampler
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        path: list[int] = []
        ending: FinishReason | Exception | None = None
        try:
            # Called as the walk goes on: the sampler stands behind what was committed before.
            for token, node in verify(draft, lambda column: sampler.choose(logits[column])):
                if (logprob := sampler.logprob(logits[path[-1] + 1 if path else 0], token)) is not None:
                    logprobs.append(logprob)
                tokens.append(token)
                slot.generated += 1
                if node is not None:
                    path.append(node)
                if ending := slot.finish_reason(token, self.target.context_limit):
                    break
                sampler.advance(token)
        except Exception as error:
            ending = error
        self._count(slot.statistics, draft, path)
        if ending is None:
            self._advance(index, slot, tokens, path, logits)
        self._tell(slot, tokens, logprobs, [draft.origins[node] for node in path], ending)
        if ending is not None:
            self._release(index, slot)
            if isinstance(ending, Exception) and self._slots[index] is None:
                self.target.clear(index)

    @staticmethod
    def _tell(
        slot: Slot,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprob],
        origins: Sequence[Origin | None],
        ending: FinishReason | Exception | None,
    ) -> None:
        origins = [*origins, *[None] * (len(tokens) - len(origins))]
        reason = None if isinstance(ending, Exception) else ending
        if tokens:
            statistics = slot.statistics if reason else None
            slot.listener(Commit(tuple(tokens), tuple(origins), tuple(logprobs), reason, statistics))
        if isinstance(ending, Exception):
            slot.listener(ending)

    def _advance(
        self, index: int, slot: Slot, tokens: Sequence[int], path: Sequence[int], logits: NDArray[np.float32]
    ) -> None:
        if slot.token is not None:
            self.target.keep(index, slot.cached, [node + 1 for node in path])
            slot.cached += 1 + len(path)
        slot.token = tokens[-1]
        if slot.drafter:
            try:
                slot.drafter.observe(tokens, logits[[0, *(node + 1 for node in path)]])
            except Exception:
                self._disable_drafter(slot)

    @staticmethod
    def _count(statistics: DecodeStatistics, draft: Draft, path: Sequence[int]) -> None:
        for origin in draft.origins:
            statistics.drafted[origin.source] = statistics.drafted.get(origin.source, 0) + 1
        for node in path:
            source = draft.origins[node].source
            statistics.accepted[source] = statistics.accepted.get(source, 0) + 1
