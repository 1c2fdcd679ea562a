"""What a caller asks for and gets back: plain dataclasses, shared by the pipeline, the server and the client.

This module imports neither torch nor numpy nor protobuf, so the light client can use it. Offsets are
counted in characters (Unicode code points), never bytes; ranges are half open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "stop_token", "stop_string", "length", "context_limit"]
SourceName = Literal["references", "prompt", "prediction", "output", "corpus", "history", "target", "model"]
SearchMode = Literal["bm25", "dense", "hybrid"]
Placement = Literal["prompt", "draft_only"]
StructureKind = Literal["json_object", "json_schema", "regex", "lark"]

SOURCE_NAMES: tuple[SourceName, ...] = (
    "references",
    "prompt",
    "prediction",
    "output",
    "corpus",
    "history",
    "target",
    "model",
)
BOUNDED_SOURCES: tuple[SourceName, ...] = ("references", "prediction", "history")
SEARCH_MODES: tuple[SearchMode, ...] = ("bm25", "dense", "hybrid")
PLACEMENTS: tuple[Placement, ...] = ("prompt", "draft_only")
STRUCTURE_KINDS: tuple[StructureKind, ...] = ("json_object", "json_schema", "regex", "lark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat."""

    role: str  # "system", "user" or "assistant", as the target's chat template knows them
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A text that the output may repeat; used for drafting only, never added to the prompt."""

    text: str
    id: str = ""  # the document id that attributions name


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the target chooses tokens and when it stops.

    temperature 0 is greedy: the highest logit, the lowest token id among equals. Logits are processed in this
    order: repetition, frequency and presence penalty, logit_bias, masks (bad_words, allowed_token_ids, min_tokens,
    the request's structure), temperature, top_k, top_p, min_p.
    """

    # How much.
    max_tokens: int = 256  # output tokens at most, at least 1
    min_tokens: int = 0  # before so many output tokens nothing but max_tokens and the context ends the output
    n: int = 1  # samples of the one prompt, 1 to 16; sample k is that of seed + k (modulo 2**63)
    # How a token is drawn.
    seed: int | None = None  # 0 to 2**63 - 1; None draws one; the completion tells which
    temperature: float = 0.0  # 0 to 1e30
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0  # in (0, 1]
    min_p: float = 0.0  # in [0, 1]: tokens of less than this share of the highest probability are left out
    # What is made more or less likely, or impossible.
    repetition_penalty: float = 1.0  # in (0, 10]; above 1 tokens of prompt and output become less likely
    presence_penalty: float = 0.0  # in [-2, 2]; subtracted once from the logits of tokens in the output
    frequency_penalty: float = 0.0  # in [-2, 2]; subtracted once for each time that a token is in the output
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # by token id, in [-100, 100]; at most 1024
    bad_words: Sequence[str] = ()  # never completed, with and without a space before; at most 256
    allowed_token_ids: Sequence[int] = ()  # no other token can be chosen; empty allows all
    # Where the output ends.
    stop: Sequence[str] = ()  # the text ends before the first of these to appear; at most 16
    stop_token_ids: Sequence[int] = ()  # the output ends with the first of these, which adds no text; at most 256
    ignore_eos: bool = False  # the target's end-of-sequence tokens are tokens like others
    # What is told of it.
    logprobs: int | None = None  # None: nothing; 0: each token's own log-probability; k <= 20: the k likeliest too


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """What the output must look like, from its first character to its last.

    kind says what source is: "json_object" has none and means any JSON object, "json_schema" a JSON schema,
    "regex" a regular expression, "lark" a grammar in Lark's notation.
    """

    kind: StructureKind
    source: str = ""  # at most 64 KiB of UTF-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """Passages to fetch from a named index before decoding."""

    index: str
    top_k: int = 5
    mode: SearchMode | None = None  # None: hybrid where the index has vectors, else bm25
    placement: Placement = "prompt"
    query: str | None = None  # None: the prompt's own text, or its last user turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """Whether and how far to draft. It changes the speed, never the output."""

    enabled: bool = True
    max_draft_tokens: int = 32  # most per step, up to 64
    sources: Sequence[SourceName] = SOURCE_NAMES
    corpus: str = ""  # the index whose passages are all drafted from; empty: none
    weights: Mapping[SourceName, float] = field(
        default_factory=dict
    )  # how far each is trusted, 1/16 to 16; 1 if absent
    limits: Mapping[SourceName, int] = field(
        default_factory=dict
    )  # tokens at most of `BOUNDED_SOURCES`, the first ones


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One request.

    prompt is a str (one user turn, put through the target's chat template where it has one), a sequence of
    `Message` (a chat, likewise templated), or a sequence of int (token ids, used as they stand).
    """

    prompt: str | Sequence[Message] | Sequence[int]
    raw: bool = False  # a str prompt is tokenised as it stands, without the chat template; no other prompt can be raw
    references: Sequence[Reference] = ()
    prediction: str = ""  # the answer the caller expects, if there is one
    retrieval: Retrieval | None = None
    sampling: Sampling = field(default_factory=Sampling)
    structure: Structure | None = None  # what the output must look like; None: anything
    drafting: Drafting = field(default_factory=Drafting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts. The prediction counts follow OpenAI's predicted outputs: tokens of `prediction` only."""

    prompt_tokens: int  # the prompt's, the same for each of several samples
    completion_tokens: int
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatistics:
    """Draft tokens of one source: how many were verified, how many of them held."""

    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingStatistics:
    """What drafting did for one sample: the work done, tokens that a stop string cut off again included.

    The first token comes with the prefill and belongs to no step.
    """

    steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    tokens_per_step: float = 0.0  # committed tokens after the first, divided by steps; 0 without a step
    by_source: Mapping[str, SourceStatistics] = field(default_factory=dict)
    drafter_faults: int = 0  # errors of the drafter; after the first the request was decoded plainly


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Output characters [output_start, output_end) equal document characters [document_start, document_end)."""

    output_start: int
    output_end: int
    document_id: str
    document_start: int
    document_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A retrieved chunk of a document."""

    document_id: str
    title: str
    text: str
    start: int  # character offset of the text in its document
    score: float
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprob:
    """A token that was likely at some place of the output, chosen or not."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """What the target itself thought of an output token: natural logarithms, before any option of the request."""

    token_id: int
    logprob: float
    top: Sequence[TopLogprob] = ()  # the likeliest tokens, likeliest first, the lowest id among equals


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What was added to one sample: text that no later token can change, and the copies in it certain so far.

    The completion may merge these copies into longer ones, or drop those that stayed too short to report.
    """

    text: str
    token_ids: Sequence[int]
    attributions: Sequence[Attribution] = ()  # output offsets count from the start of the whole output
    logprobs: Sequence[TokenLogprob] = ()  # one for each of token_ids; empty when not asked for
    sample: int = 0  # which of the request's n samples it belongs to, from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One whole answer."""

    text: str
    token_ids: Sequence[int]  # a token that ended the output ("stop", "stop_token") is the last
    finish_reason: FinishReason
    usage: Usage
    drafting: DraftingStatistics
    attributions: Sequence[Attribution] = ()
    passages: Sequence[Passage] = ()  # what retrieval placed in the prompt or drafted from
    logprobs: Sequence[TokenLogprob] = ()  # one for each of token_ids; empty when not asked for
    sample: int = 0  # which of the request's n samples it is, from 0
    seed: int = 0  # this sample's own seed; send it with n = 1 to get the same answer again


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The target a server answers with."""

    name: str
    vocabulary_size: int
    context_limit: int  # tokens, prompt and output together
    dtype: str
    device: str
    numerics: str
    slots: int
    tokenizer_fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexInfo:
    """An opened index."""

    name: str
    documents: int
    passages: int
    tokens: int
    modes: Sequence[SearchMode]
    tokenizer_fingerprint: str
