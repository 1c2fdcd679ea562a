"""What is drawn: targets, engines, batches of requests with all that they can ask for, and how they are drafted."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, get_args

from hypothesis import strategies as st

from refdraft.decoder.cost import PassCost
from refdraft.decoder.engine import EngineConfig
from refdraft.decoder.request import DecodeRequest
from refdraft.decoder.sampling import SamplingOptions
from tests.lossless import oracle
from tests.lossless.drafters import Drafting, Fault
from tests.lossless.rules import EndsWith, Residues
from tests.lossless.targets import CONTEXT_LIMIT, MAX_WIDTH, TARGETS, VOCABULARY


class FixedCost(PassCost):
    """What no pass changes, so that a case is the same whenever it is tried."""

    def observe(self, rows: int, width: int, cells: int, seconds: float) -> None:
        """Learn nothing."""


FREE = FixedCost()
STEEP = FixedCost({1: 1.0, 4: 1.6, 16: 4.0, 48: 12.0})  # under it a planner drafts less than it could


@dataclass(frozen=True)
class Ask:
    """One prompt and the samples that are wanted of it.

    Attributes:
        request: all that the samples share.
        seeds: one a sample.
        stop: sequences that end an output.
        constraint: what an output may look like.
        drafting: how the samples are drafted.
        guide: what plain decoding would write with the first seed if nothing ended or forbade it.
        arrival: the engine's step before which the request comes in.
        cancelled: for each sample the step before which it is cancelled, None for never.
    """

    request: DecodeRequest
    seeds: tuple[int, ...]
    stop: tuple[tuple[int, ...], ...]
    constraint: Residues | None
    drafting: Drafting
    guide: tuple[int, ...]
    arrival: int
    cancelled: tuple[int | None, ...]

    def sample(self, seed: int) -> DecodeRequest:
        """The request of one sample, with stop rule and constraint at the start."""
        return replace(
            self.request,
            sampling=replace(self.request.sampling, seed=seed),
            stop=EndsWith(self.stop) if self.stop else None,
            constraint=self.constraint.follow() if self.constraint else None,
        )


@dataclass(frozen=True)
class Case:
    """An engine and what it is asked; in strict numerics all its passes may have to have one shape."""

    target: str
    slots: int
    context_limit: int
    config: EngineConfig
    cost: PassCost
    one_shape: bool
    asks: tuple[Ask, ...]


def rarely(strategy: st.SearchStrategy[Any], otherwise: Any = None) -> st.SearchStrategy[Any]:
    """One time in five what `strategy` draws."""
    return st.integers(0, 4).flatmap(lambda n: strategy if n == 4 else st.just(otherwise))


TOKEN = st.integers(0, VOCABULARY - 1)
NEAR = st.integers(0, 4 * VOCABULARY - 1)  # a token, or rather a place in a guide: see `Guide.token`
PIECE = st.tuples(NEAR, st.sampled_from([2, 1, 3]))  # see `Guide.piece`
RANDOM_PROMPT = st.lists(TOKEN, min_size=1, max_size=8)
PERIODIC_PROMPT = st.builds(
    lambda period, times: period * times, st.lists(TOKEN, min_size=1, max_size=3), st.integers(2, 9)
)
PROMPT = (RANDOM_PROMPT | PERIODIC_PROMPT).map(tuple)
SEEDS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3).map(tuple)

# Steps of 1/4 where scores are added up, so that two orders of summation cannot tear a tie apart; shares that no
# whole number of equal weights makes, so that rounding cannot decide what lies at a border.
SAMPLING: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.0, 0.7, 1.0, 1.6, 1e-6, 1e-4])},
    optional={
        "repetition_penalty": st.sampled_from([0.75, 1.25, 2.0]),
        "frequency_penalty": st.sampled_from([-0.5, 0.25, 1.5]),
        "presence_penalty": st.sampled_from([-0.75, 0.5, 2.0]),
        "top_k": st.sampled_from([1, 2, 3, 8, 100]),
        "top_p": st.sampled_from([0.0137, 0.3171, 0.6181, 0.9137]),
        "min_p": st.sampled_from([0.0213, 0.2171, 1.0]),
    },
)
MASKS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "bad_words": st.lists(PIECE, min_size=1, max_size=3),
        "logit_bias": st.dictionaries(NEAR, st.sampled_from([-100.0, -1.75, 1.5, 100.0]), max_size=3),
        "allowed_ids": st.tuples(st.sampled_from([False, False, True]), st.frozensets(NEAR, min_size=1, max_size=4)),
    },
)
ENDS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "eos_ids": st.frozensets(NEAR, max_size=2),
        "stop_ids": st.frozensets(NEAR, max_size=2),
        "stop": st.lists(PIECE, min_size=1, max_size=2),
    },
)
REST: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"max_draft_tokens": st.sampled_from([16, 16, 16, 16, 4, 0])},
    optional={"min_tokens": st.integers(0, 6), "top_logprobs": st.sampled_from([0, 1, 4, VOCABULARY + 1])},
)

SOME_RESIDUES = st.frozensets(st.integers(0, 3), min_size=1)
STATE = st.integers(0, 9).flatmap(lambda n: st.just(frozenset[int]()) if n == 9 else SOME_RESIDUES)
RESIDUES = st.lists(STATE, min_size=2, max_size=4).map(lambda states: Residues(tuple(states)))

DRAFTING = st.builds(
    Drafting,
    kind=st.sampled_from(["tree", "chain", "tree", "own", "none"]),
    accuracy=st.sampled_from([1.0, 1.0, 0.9, 0.6, 0.0]),
    seed=st.integers(0, 2**16),
    nodes=st.sampled_from([10, 20, 6, 3, 1]),
    foreign=rarely(st.just(True), otherwise=False),
    fault=rarely(st.tuples(st.sampled_from(get_args(Fault)), st.integers(0, 3))),
)
CONFIG = st.builds(
    EngineConfig,
    numerics=st.sampled_from(["fast", "fast", "strict"]),
    max_draft_tokens=st.sampled_from([MAX_WIDTH - 1, MAX_WIDTH - 1, 5, 2]),
    prefill_chunk=st.sampled_from([MAX_WIDTH, 5, 1]),
)


class Guide(tuple[int, ...]):
    """A text from which masks and ends are taken, so that they matter: what would be written without them."""

    def token(self, near: int) -> int:
        """A token of any kind, or one of the text's."""
        return self[near % len(self)] if near >= VOCABULARY and self else near % VOCABULARY

    def tokens(self, nears: Iterable[int]) -> frozenset[int]:
        """Several."""
        return frozenset(map(self.token, nears))

    def piece(self, near: int, size: int) -> tuple[int, ...]:
        """A token of any kind, or a short sequence of the text's."""
        start = near % len(self) if near >= VOCABULARY and self else len(self)
        return self[start : start + size] or (near % VOCABULARY,)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """An engine of 1 to 4 slots, and 1 to 4 prompts for it."""
    target = draw(st.sampled_from(sorted(TARGETS)))
    context_limit = draw(st.sampled_from([CONTEXT_LIMIT, CONTEXT_LIMIT, CONTEXT_LIMIT, 12, 6]))
    slots, count = draw(st.integers(1, 4)), draw(st.sampled_from([1, 1, 2, 2, 3, 4]))
    cost = draw(st.sampled_from([FREE, FREE, STEEP]))
    drawn = tuple(draw(asks(target, context_limit)) for _ in range(count))
    return Case(target, slots, context_limit, draw(CONFIG), cost, draw(st.booleans()), drawn)


@st.composite
def asks(draw: st.DrawFn, target: str, context_limit: int) -> Ask:
    """A prompt that fits the context, and what is asked of it."""
    prompt, options, seeds = draw(PROMPT)[: context_limit - 1], draw(SAMPLING), draw(SEEDS)
    free = DecodeRequest(prompt, draw(st.sampled_from([16, 16, 9, 3, 1])), SamplingOptions(**options, seed=seeds[0]))
    guide = Guide(oracle.decode(free, TARGETS[target].forward, context_limit).ids)
    ends, drafting = draw(ENDS), draw(DRAFTING)
    request = replace(
        free,
        sampling=SamplingOptions(**options, **masks(draw(MASKS), prompt, guide)),
        eos_ids=guide.tokens(ends.get("eos_ids", ())),
        stop_ids=guide.tokens(ends.get("stop_ids", ())),
        documents={"references": [drafting.noisy(guide)]},
        **draw(REST),
    )
    return Ask(
        request,
        seeds,
        stop=tuple(guide.piece(*piece) for piece in ends.get("stop", ())),
        constraint=draw(rarely(RESIDUES)),
        drafting=drafting,
        guide=guide,
        arrival=draw(st.integers(0, 6)),
        cancelled=tuple(draw(rarely(st.sampled_from([0, 3, 7]))) for _ in seeds),
    )


def masks(drawn: dict[str, Any], prompt: tuple[int, ...], guide: Guide) -> dict[str, Any]:
    """The options that forbid or push tokens."""
    options: dict[str, Any] = {}
    if "bad_words" in drawn:  # some begin in the prompt
        text = Guide([*prompt[-2:], *guide])
        options["bad_words"] = tuple(text.piece(*piece) for piece in drawn["bad_words"])
    if "logit_bias" in drawn:
        options["logit_bias"] = {guide.token(near): bias for near, bias in drawn["logit_bias"].items()}
    if "allowed_ids" in drawn:
        named, nears = drawn["allowed_ids"]
        ids = guide.tokens(nears)
        options["allowed_ids"] = ids if named else frozenset(range(VOCABULARY)) - ids
    return options
