"""What a caller asks for and gets back: plain dataclasses, shared by the pipeline, the server and the client.

This module imports neither torch nor numpy nor protobuf, so the light client can use it. Offsets are
counted in characters (Unicode code points), never bytes; ranges are half open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "stop_string", "length", "context_limit"]
SourceName = Literal["references", "prompt", "prediction", "output"]
SearchMode = Literal["bm25", "dense", "hybrid"]
Placement = Literal["prompt", "draft_only"]

SOURCE_NAMES: tuple[SourceName, ...] = ("references", "prompt", "prediction", "output")
SEARCH_MODES: tuple[SearchMode, ...] = ("bm25", "dense", "hybrid")
PLACEMENTS: tuple[Placement, ...] = ("prompt", "draft_only")


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

    temperature 0 is greedy: the highest logit, the lowest token id among equals.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0  # in (0, 1]
    seed: int | None = None  # None draws one; the completion tells which
    stop: Sequence[str] = ()  # the text ends before the first of these to appear


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
    max_draft_tokens: int = 16  # most per step, up to 64; strict numerics verifies 15 at most
    sources: Sequence[SourceName] = SOURCE_NAMES


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
    drafting: Drafting = field(default_factory=Drafting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts. The prediction counts follow OpenAI's predicted outputs: tokens of `prediction` only."""

    prompt_tokens: int
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
    """What drafting did for one request: the work done, tokens that a stop string cut off again included.

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
class Delta:
    """What one step added: text that no later token can change, and the copies in it that are certain so far.

    The completion may merge these copies into longer ones, or drop those that stayed too short to report.
    """

    text: str
    token_ids: Sequence[int]
    attributions: Sequence[Attribution] = ()  # output offsets count from the start of the whole output


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The whole answer."""

    text: str
    token_ids: Sequence[int]
    finish_reason: FinishReason
    usage: Usage
    drafting: DraftingStatistics
    attributions: Sequence[Attribution] = ()
    passages: Sequence[Passage] = ()  # what retrieval placed in the prompt or drafted from
    seed: int = 0  # the seed in force; send it to get the same sample again


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
