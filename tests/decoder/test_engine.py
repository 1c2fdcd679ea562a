"""Drafted output against plain decoding: ids and finish reasons must be equal whatever is drafted.

Float32 passes of different shapes differ in the last bits, so ids could part at a near tie; Hypothesis runs
derandomised, on seeds without one. Strict numerics is held to equality of every bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from refdraft.decoder import sampler as sampler_module
from refdraft.decoder.draft import EMPTY, Draft, Origin
from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.request import DecodeRequest
from refdraft.decoder.sampling import SamplingOptions, choose
from refdraft.decoder.target import Target
from refdraft.errors import InvalidRequestError
from tests.decoder.conftest import CONTEXT_LIMIT, Decoder, Load, Result

VOCABULARY = 512


class TreeDrafter:
    """Proposes random trees, or chains, in which the true continuation hides among noise."""

    def __init__(self, truth: Sequence[int], seed: int, *, chains: bool = False) -> None:
        self._truth, self._committed, self._chains = truth, 0, chains
        self._rng = np.random.default_rng(seed)

    def propose(self, limit: int) -> Draft:
        rng = self._rng
        parents: list[int] = []
        tokens: list[int] = []
        depth_on_truth = {-1: 0}  # nodes whose whole path is true, and how deep they lie
        for node in range(int(rng.integers(0, limit + 1))):
            deepest = max(depth_on_truth, key=depth_on_truth.__getitem__)
            parent = deepest if rng.random() < 0.6 else int(rng.integers(-1, node))
            parent = node - 1 if self._chains else parent
            token = int(rng.integers(0, VOCABULARY))
            if parent in depth_on_truth and rng.random() < 0.8:
                at = self._committed + depth_on_truth[parent]
                if at < len(self._truth):
                    token = self._truth[at]
                    depth_on_truth[node] = depth_on_truth[parent] + 1
            parents.append(parent)
            tokens.append(token)
        origins = (Origin("tree", 0, 0),) * len(tokens)
        return Draft(tuple(tokens), tuple(parents), origins, (1.0,) * len(tokens))

    def observe(self, tokens: Sequence[int]) -> None:
        self._committed += len(tokens)


class CountingStop:
    """Ends an output at the nth token of one residue: a stop rule with a state of its own."""

    def __init__(self, residue: int, count: int) -> None:
        self._residue, self._left = residue, count

    def __call__(self, token: int) -> bool:
        self._left -= token % 5 == self._residue
        return self._left == 0


Drafts = Literal["none", "noise", "perfect", "nearly", "unknown ids", "tree"]


@dataclass(frozen=True)
class Spec:
    """A request that can be made afresh: stop rules keep state."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingOptions
    stop: tuple[int, int] | None
    eos_at: int | None  # the output's own token at this index, or an earlier equal one, is made its end
    drafts: Drafts
    max_draft_tokens: int
    seed: int

    def plain(self) -> DecodeRequest:
        stop = CountingStop(*self.stop) if self.stop else None
        return DecodeRequest(
            self.prompt, self.max_tokens, sampling=self.sampling, stop=stop, max_draft_tokens=self.max_draft_tokens
        )

    def documents(self, ids: Sequence[int]) -> list[list[int]]:
        """What is drafted from, given the ids that plain decoding writes when nothing ends it."""
        rng = np.random.default_rng(self.seed)
        noise = [rng.integers(0, VOCABULARY, 30).tolist() for _ in range(2)]
        start = list(self.prompt[-3:])
        if self.drafts == "noise":
            return [*noise, [token for token in ids for _ in range(2)]]
        if self.drafts == "nearly":
            return [start + [t if rng.random() < 0.8 else int(rng.integers(0, VOCABULARY)) for t in ids], *noise]
        if self.drafts == "unknown ids":
            return [start + [t if rng.random() < 0.8 else int(rng.choice([512, 9999, 2**31])) for t in ids], []]
        return [] if self.drafts == "none" else [[*start, *ids, *ids]]


prompts = st.one_of(
    st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=50),
    st.lists(st.integers(40, 44), min_size=1, max_size=50),
    st.lists(st.integers(3, VOCABULARY - 1), min_size=CONTEXT_LIMIT - 8, max_size=CONTEXT_LIMIT - 1),
).map(tuple)
samplings = st.one_of(
    st.just(SamplingOptions()),
    st.builds(
        SamplingOptions,
        temperature=st.sampled_from([0.3, 1.0, 1.6]),
        top_k=st.sampled_from([0, 1, 3, 50]),
        top_p=st.sampled_from([1.0, 0.9, 0.4]),
        seed=st.integers(0, 2**64 - 1),
    ),
)
specs = st.builds(
    Spec,
    prompt=prompts,
    max_tokens=st.integers(1, 24),
    sampling=samplings,
    stop=st.none() | st.tuples(st.integers(0, 4), st.integers(1, 5)),
    eos_at=st.none() | st.integers(0, 12),
    drafts=st.sampled_from(["none", "noise", "perfect", "nearly", "unknown ids", "tree"]),
    max_draft_tokens=st.integers(0, 16),
    seed=st.integers(0, 2**32),
)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.lists(st.tuples(specs, st.integers(0, 12)), min_size=1, max_size=5), st.integers(1, 3))
def test_no_draft_neighbour_or_arrival_changes_an_output(
    targets: dict[int, Target], arriving: list[tuple[Spec, int]], slots: int
) -> None:
    decoder = Decoder(targets[slots], EngineConfig(max_draft_tokens=32, prefill_chunk=16))
    expected: list[Result] = []
    requests: list[DecodeRequest] = []
    drafters: dict[int, object] = {}
    for index, (spec, _) in enumerate(arriving):
        endless = decoder.plain(replace(spec.plain(), stop=None)).ids
        eos = frozenset(endless[spec.eos_at : spec.eos_at + 1]) if spec.eos_at is not None else frozenset()
        expected.append(decoder.plain(replace(spec.plain(), eos_ids=eos)))
        requests.append(replace(spec.plain(), eos_ids=eos, documents={"references": spec.documents(endless)}))
        if spec.drafts == "tree":
            drafters[index] = TreeDrafter(endless, spec.seed)
    results = decoder.run(requests, arrivals=[arrival for _, arrival in arriving], drafters=drafters)
    assert [result.output for result in results] == [result.output for result in expected]
    for result in results:
        assert result.statistics is not None
        drafted, accepted = result.statistics.drafted, sum(result.statistics.accepted.values())
        assert accepted <= sum(drafted.values())
        # Each step adds its accepted tokens and one more, save a last step that a stop rule cut short.
        assert 0 <= result.statistics.steps + accepted + 1 - len(result.ids) <= 1
        assert result.statistics.drafter_faults == 0


PROMPT = (50, 61, 72, 83, 50, 61)


def perfect(decoder: Decoder, request: DecodeRequest) -> DecodeRequest:
    """The request with its own endless output as a reference."""
    room = decoder.target.context_limit - len(request.prompt)
    endless = decoder.plain(DecodeRequest(request.prompt, room, sampling=request.sampling))
    return replace(request, documents={"references": [[*request.prompt, *endless.ids]]})


def test_a_perfect_reference_saves_most_steps(decoder: Decoder) -> None:
    request = DecodeRequest(PROMPT, 60)
    result = decoder.run([perfect(decoder, request)])[0]
    assert result.output == decoder.plain(request).output
    assert result.statistics is not None
    assert result.statistics.steps <= 6
    assert result.statistics.drafted.keys() == {"references"}
    assert result.statistics.accepted == result.statistics.drafted


def test_max_tokens_falls_anywhere_in_an_accepted_span(decoder: Decoder) -> None:
    whole = perfect(decoder, DecodeRequest(PROMPT, 30))
    endless = decoder.plain(whole).ids
    for max_tokens in range(1, 22):
        result = decoder.run([replace(whole, max_tokens=max_tokens)])[0]
        assert result.output == (endless[:max_tokens], "length")


@pytest.mark.parametrize("room", [1, 2, 3, 7, 16, 17, 18, 23])
def test_the_context_limit_falls_anywhere_in_an_accepted_span(decoder: Decoder, room: int) -> None:
    prompt = (PROMPT * 16)[: CONTEXT_LIMIT - room]
    request = DecodeRequest(prompt, 1000)
    result = decoder.run([perfect(decoder, request)])[0]
    assert result.output == decoder.plain(request).output
    assert len(result.ids) == room
    assert result.reason == "context_limit"


def test_an_end_of_sequence_falls_anywhere_in_an_accepted_span(decoder: Decoder) -> None:
    whole = perfect(decoder, DecodeRequest(PROMPT, 30))
    endless = decoder.plain(whole).ids
    for token in endless[:22]:
        result = decoder.run([replace(whole, eos_ids=frozenset({token}))])[0]
        assert result.output == (endless[: endless.index(token) + 1], "stop")


def test_the_earliest_rule_wins_and_the_end_of_sequence_among_equals(decoder: Decoder) -> None:
    endless = decoder.plain(DecodeRequest(PROMPT, 9)).ids
    last = frozenset({endless[-1]} - set(endless[:-1]))
    assert last
    for eos_ids, reason in ((last, "stop"), (frozenset[int](), "stop_string")):
        request = DecodeRequest(PROMPT, 9, eos_ids=eos_ids, stop=last.__contains__)
        for result in (decoder.plain(request), decoder.run([perfect(decoder, request)])[0]):
            assert result.output == (endless, reason)


def test_a_short_request_takes_the_slot_of_a_long_one(targets: dict[int, Target]) -> None:
    decoder = Decoder(targets[1], EngineConfig(max_draft_tokens=32, prefill_chunk=16))
    long = DecodeRequest((PROMPT * 20)[:80], 16)
    short = DecodeRequest((7, 9), 30)
    results = decoder.run([perfect(decoder, long), perfect(decoder, short)])
    assert [result.output for result in results] == [decoder.plain(long).output, decoder.plain(short).output]


class FaultyDrafter(TreeDrafter):
    def __init__(self, truth: Sequence[int], method: str, calls: int) -> None:
        super().__init__(truth, 0)
        self._method, self._left = method, calls

    def _count(self, method: str) -> None:
        self._left -= method == self._method
        if self._left < 0:
            raise RuntimeError("a drafter's bug")

    def propose(self, limit: int) -> Draft:
        self._count("propose")
        return super().propose(limit)

    def observe(self, tokens: Sequence[int]) -> None:
        self._count("observe")
        super().observe(tokens)


@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize("method", ["propose", "observe"])
def test_a_drafters_fault_costs_speed_only(decoder: Decoder, method: str, calls: int) -> None:
    request = DecodeRequest(PROMPT, 40)
    plain = decoder.plain(request)
    healthy = DecodeRequest((9, 8, 7), 40)
    results = decoder.run([request, healthy], drafters={0: FaultyDrafter(plain.ids, method, calls)})
    assert [result.output for result in results] == [plain.output, decoder.plain(healthy).output]
    assert [result.statistics and result.statistics.drafter_faults for result in results] == [1, 0]


def test_sources_that_cannot_be_read_turn_drafting_off(decoder: Decoder) -> None:
    request = DecodeRequest(PROMPT, 20)
    broken: Any = [None]
    result = decoder.run([replace(request, documents={"references": broken})])[0]
    assert result.output == decoder.plain(request).output
    assert result.statistics is not None
    assert result.statistics.drafted == {}


def test_a_stop_rules_fault_fails_its_own_request(decoder: Decoder) -> None:
    def stop(token: int) -> bool:
        raise LookupError("a stop rule's bug")

    healthy = DecodeRequest(PROMPT, 20)
    results = decoder.run([DecodeRequest((4, 5), 20, stop=stop), healthy, healthy])
    assert isinstance(results[0].error, LookupError)
    assert [result.output for result in results[1:]] == [decoder.plain(healthy).output] * 2


def test_numbers_that_are_none_fail_their_own_request_and_leave_no_trace(load_tiny: Load) -> None:
    """A token that the model turns to NaN: half precision overflows like that."""
    target = load_tiny(slots=2)
    with torch.no_grad():
        embeddings: Any = target.model.get_input_embeddings()
        embeddings.weight[511] = float("nan")
    decoder = Decoder(target, EngineConfig(max_draft_tokens=32, prefill_chunk=16))
    healthy = DecodeRequest(PROMPT, 40)
    expected = decoder.plain(healthy).output
    poisoned = DecodeRequest((9,) * 70 + (511,), 20)
    results = decoder.run([poisoned, DecodeRequest((PROMPT * 20)[:80], 16), healthy])
    assert isinstance(results[0].error, FloatingPointError)
    assert results[2].output == expected


def test_a_cancelled_slot_is_free_before_the_next_step(targets: dict[int, Target]) -> None:
    engine = Engine(targets[1], EngineConfig(max_draft_tokens=32, prefill_chunk=16))
    first, second = Result(), Result()
    running = engine.prepare(DecodeRequest(PROMPT, 80), None, first.listen)
    waiting = engine.prepare(DecodeRequest(PROMPT, 80), None, second.listen)
    engine.submit(running)
    engine.submit(waiting)
    engine.step()
    assert len(first.ids) == 2
    assert second.ids == []
    running.cancelled = True
    engine.step()
    assert len(first.ids) == 2
    assert len(second.ids) == 2
    waiting.cancelled = True
    engine.step()
    assert not engine.busy
    assert len(second.ids) == 2


@pytest.mark.parametrize("size", [0, CONTEXT_LIMIT, CONTEXT_LIMIT + 1])
def test_a_prompt_that_cannot_fit_is_refused(decoder: Decoder, size: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"prompt: {size} tokens; between 1 and {CONTEXT_LIMIT - 1} fit"):
        Engine(decoder.target, decoder.config).prepare(DecodeRequest((5,) * size, 4), None, Result().listen)


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
    """Not the same bits: a branch lies in other cells than the plain output would, and sums mind their order."""
    decoder = Decoder(targets[3], EngineConfig(numerics=numerics, max_draft_tokens=15, prefill_chunk=16))
    requests = [DecodeRequest(prompt, 60) for prompt in (PROMPT, (9, 8, 7), (300, 301) * 10)]
    expected = [decoder.plain(request) for request in requests]
    stubs = {index: TreeDrafter(result.ids, index) for index, result in enumerate(expected)}
    results = decoder.run(requests, drafters=stubs)
    assert [result.output for result in results] == [result.output for result in expected]
    assert all(result.statistics and result.statistics.steps < 40 for result in results)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_strict_numerics_gives_the_same_bits(
    load_tiny: Load, monkeypatch: pytest.MonkeyPatch, dtype: str, temperature: float
) -> None:
    decoder = Decoder(load_tiny(dtype=dtype), EngineConfig(numerics="strict", max_draft_tokens=7, prefill_chunk=16))
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


def test_calibration_times_passes_up_to_the_widest(decoder: Decoder) -> None:
    engine = Engine(decoder.target, decoder.config)
    engine.calibrate(repeats=1)
    assert set(engine.cost.seconds) == {w for w in (1, 2, 4, 8, 16, 32, 65) if w <= decoder.config.max_draft_tokens + 1}
    assert all(seconds > 0 for seconds in engine.cost.seconds.values())


def test_a_target_without_room_for_the_widest_pass_is_refused(decoder: Decoder) -> None:
    with pytest.raises(ValueError, match="room for passes of"):
        Engine(decoder.target, EngineConfig(max_draft_tokens=decoder.target.max_width))


def test_an_empty_proposal_is_plain_decoding(decoder: Decoder) -> None:
    class Silent:
        propose: Callable[[int], Draft] = staticmethod(lambda limit: EMPTY)
        observe: Callable[[Sequence[int]], None] = staticmethod(lambda tokens: None)

    request = DecodeRequest(PROMPT, 12)
    result = decoder.run([request], drafters={0: Silent()})[0]
    assert result.output == decoder.plain(request).output
    assert result.statistics is not None
    assert result.statistics.steps == 11
