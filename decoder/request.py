"""What the engine is asked for and what it tells: token ids only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from refdraft.decoder.constraint import Constraint
from refdraft.decoder.corpus import Corpus
from refdraft.decoder.draft import Origin
from refdraft.decoder.drafter import DrafterOptions
from refdraft.decoder.sampling import SamplingOptions

FinishReason = Literal["stop", "stop_token", "stop_string", "length", "context_limit"]


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One sequence to decode.

    Attributes:
        prompt: token ids, at least one.
        max_tokens: output tokens at most, at least 1.
        sampling: how the target chooses tokens.
        constraint: what the output may look like; it keeps this output's state.
        eos_ids, stop_ids: the output ends with the first of these.
        min_tokens: output tokens before one of `eos_ids` and `stop_ids` can be chosen.
        stop: called once for each committed token in order; True ends the output there. It may keep state.
        top_logprobs: None asks for no log-probabilities, k for each token's own and the k likeliest.
        documents: token ids of the documents of each source by its name (see `pool.SOURCES`), best document first.
        corpus: a large text that is drafted from where it goes on as the context does.
        drafting: what else is drafted from, and how.
        max_draft_tokens: drafted tokens a step at most; 0 is plain decoding.
    """

    prompt: Sequence[int]
    max_tokens: int
    sampling: SamplingOptions = SamplingOptions()
    constraint: Constraint | None = None
    eos_ids: frozenset[int] = frozenset()
    stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    stop: Callable[[int], bool] | None = None
    top_logprobs: int | None = None
    documents: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    corpus: Corpus | None = None
    drafting: DrafterOptions = field(default_factory=DrafterOptions)
    max_draft_tokens: int = 32


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """What the target itself thought of a committed token, before penalties, masks and temperature.

    Attributes:
        token: its id.
        logit: its logit.
        logprob: natural logarithm of its probability.
        top: (token id, logprob) of the likeliest tokens, likeliest first, the lowest id among equals.
    """

    token: int
    logit: float
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class DecodeStatistics:
    """Counts of one request. The first token comes with the prefill and belongs to no step."""

    steps: int = 0
    drafted: dict[str, int] = field(default_factory=dict)  # verified draft tokens by source
    accepted: dict[str, int] = field(default_factory=dict)  # those of them that were committed
    drafter_faults: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that one step committed, in order.

    Attributes:
        tokens: token ids, one that ends the output included.
        origins: where each accepted token was copied from; None for the target's own.
        logprobs: one for each token where the request asked for them, else empty.
        finish_reason: set on the last commit of a request.
        statistics: set on the last commit of a request.
    """

    tokens: tuple[int, ...]
    origins: tuple[Origin | None, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    statistics: DecodeStatistics | None = None
