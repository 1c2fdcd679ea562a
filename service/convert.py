"""Protobuf messages to dataclasses and back. Values are not judged here, only translated.

Absent fields become the dataclasses' own defaults, so each default is written once.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import google.protobuf.message

from refdraft.errors import InvalidRequestError, RefdraftError
from refdraft.service.types import (
    SOURCE_NAMES,
    STRUCTURE_KINDS,
    Attribution,
    Completion,
    Delta,
    Drafting,
    DraftingStatistics,
    FinishReason,
    GenerateRequest,
    IndexInfo,
    Message,
    ModelInfo,
    Passage,
    Placement,
    Reference,
    Retrieval,
    Sampling,
    SearchMode,
    SourceName,
    SourceStatistics,
    Structure,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from refdraft.v1 import refdraft_pb2 as pb

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_M = TypeVar("_M", bound=google.protobuf.message.Message)
_D = TypeVar("_D", bound="DataclassInstance")
_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

_SEARCH_MODES: "Mapping[SearchMode, pb.SearchMode.ValueType]" = {
    "bm25": pb.SEARCH_MODE_BM25,
    "dense": pb.SEARCH_MODE_DENSE,
    "hybrid": pb.SEARCH_MODE_HYBRID,
}
_PLACEMENTS: "Mapping[Placement, pb.Placement.ValueType]" = {
    "prompt": pb.PLACEMENT_PROMPT,
    "draft_only": pb.PLACEMENT_DRAFT_ONLY,
}
_SOURCES: "Mapping[SourceName, pb.DraftSource.ValueType]" = {
    "references": pb.DRAFT_SOURCE_REFERENCES,
    "prompt": pb.DRAFT_SOURCE_PROMPT,
    "prediction": pb.DRAFT_SOURCE_PREDICTION,
    "output": pb.DRAFT_SOURCE_OUTPUT,
    "corpus": pb.DRAFT_SOURCE_CORPUS,
    "history": pb.DRAFT_SOURCE_HISTORY,
    "target": pb.DRAFT_SOURCE_TARGET,
    "model": pb.DRAFT_SOURCE_MODEL,
}
_FINISH_REASONS: "Mapping[FinishReason, pb.FinishReason.ValueType]" = {
    "stop": pb.FINISH_REASON_STOP,
    "stop_token": pb.FINISH_REASON_STOP_TOKEN,
    "stop_string": pb.FINISH_REASON_STOP_STRING,
    "length": pb.FINISH_REASON_LENGTH,
    "context_limit": pb.FINISH_REASON_CONTEXT_LIMIT,
}


def request_to_proto(request: GenerateRequest) -> pb.GenerateRequest:
    """Translate a request that `validate` accepts."""
    retrieval = request.retrieval
    return pb.GenerateRequest(
        references=[_to_proto(pb.Reference, reference) for reference in request.references],
        prediction=request.prediction,
        retrieval=None if retrieval is None else retrieval_to_proto(retrieval),
        sampling=_sampling_to_proto(request.sampling),
        structure=None if request.structure is None else _structure_to_proto(request.structure),
        drafting=_drafting_to_proto(request.drafting),
        **_prompt_to_proto(request),
    )


def request_from_proto(message: pb.GenerateRequest) -> GenerateRequest:
    """Translate a request; an absent prompt becomes an empty one.

    Raises:
        InvalidRequestError: an enum value that has no name here, or a structure of no kind.
    """
    return GenerateRequest(
        prompt=_prompt_from_proto(message),
        raw=message.WhichOneof("prompt") == "raw_text",
        references=tuple(_from_proto(Reference, reference) for reference in message.references),
        prediction=message.prediction,
        retrieval=retrieval_from_proto(message.retrieval) if message.HasField("retrieval") else None,
        sampling=_sampling_from_proto(message.sampling),
        structure=_structure_from_proto(message.structure) if message.HasField("structure") else None,
        drafting=_drafting_from_proto(message.drafting),
    )


def retrieval_to_proto(retrieval: Retrieval) -> pb.Retrieval:
    """Translate a retrieval that `validate_retrieval` accepts."""
    return pb.Retrieval(
        index=retrieval.index,
        top_k=retrieval.top_k,
        mode=pb.SEARCH_MODE_UNSPECIFIED if retrieval.mode is None else _SEARCH_MODES[retrieval.mode],
        placement=_PLACEMENTS[retrieval.placement],
        query=retrieval.query,
    )


def retrieval_from_proto(message: pb.Retrieval) -> Retrieval:
    """Translate a retrieval.

    Raises:
        InvalidRequestError: an enum value that has no name here.
    """
    given = _present(message, "top_k", "query")
    if message.mode != pb.SEARCH_MODE_UNSPECIFIED:
        given["mode"] = _asked(_inverse(_SEARCH_MODES), message.mode, "retrieval.mode")
    if message.placement != pb.PLACEMENT_UNSPECIFIED:
        given["placement"] = _asked(_inverse(_PLACEMENTS), message.placement, "retrieval.placement")
    return Retrieval(index=message.index, **given)


def completion_to_proto(completion: Completion) -> pb.Completion:
    """Translate a completion."""
    return pb.Completion(
        **_but_logprobs(completion) | {"finish_reason": _FINISH_REASONS[completion.finish_reason]},
        logprobs=map(_logprob_to_proto, completion.logprobs),
    )


def completion_from_proto(message: pb.Completion) -> Completion:
    """Translate a completion.

    Raises:
        RefdraftError: a finish reason that only a newer refdraft knows.
    """
    drafting = message.drafting
    return Completion(
        text=message.text,
        token_ids=tuple(message.token_ids),
        finish_reason=_answered(_inverse(_FINISH_REASONS), message.finish_reason, "finish_reason"),
        usage=_from_proto(Usage, message.usage),
        drafting=DraftingStatistics(
            steps=drafting.steps,
            drafted_tokens=drafting.drafted_tokens,
            accepted_tokens=drafting.accepted_tokens,
            tokens_per_step=drafting.tokens_per_step,
            drafter_faults=drafting.drafter_faults,
            by_source={name: _from_proto(SourceStatistics, counts) for name, counts in drafting.by_source.items()},
        ),
        attributions=tuple(_from_proto(Attribution, attribution) for attribution in message.attributions),
        passages=passages_from_proto(message.passages),
        logprobs=_logprobs_from_proto(message.logprobs),
        sample=message.sample,
        seed=message.seed,
    )


def event_to_proto(event: Delta | Completion) -> pb.GenerateStreamResponse:
    """Translate one event of a stream."""
    if isinstance(event, Completion):
        return pb.GenerateStreamResponse(completion=completion_to_proto(event))
    delta = pb.Delta(**_but_logprobs(event), logprobs=map(_logprob_to_proto, event.logprobs))
    return pb.GenerateStreamResponse(delta=delta)


def event_from_proto(message: pb.GenerateStreamResponse) -> Delta | Completion:
    """Translate one event of a stream.

    Raises:
        RefdraftError: a finish reason that only a newer refdraft knows.
    """
    if message.HasField("completion"):
        return completion_from_proto(message.completion)
    return Delta(
        text=message.delta.text,
        token_ids=tuple(message.delta.token_ids),
        attributions=tuple(_from_proto(Attribution, item) for item in message.delta.attributions),
        logprobs=_logprobs_from_proto(message.delta.logprobs),
        sample=message.delta.sample,
    )


def passages_to_proto(passages: Sequence[Passage]) -> list[pb.Passage]:
    """Translate passages."""
    return [_to_proto(pb.Passage, passage) for passage in passages]


def passages_from_proto(messages: Sequence[pb.Passage]) -> tuple[Passage, ...]:
    """Translate passages."""
    return tuple(
        Passage(
            document_id=message.document_id,
            title=message.title,
            text=message.text,
            start=message.start,
            score=message.score,
            metadata=dict(message.metadata),
        )
        for message in messages
    )


def model_to_proto(model: ModelInfo) -> pb.ModelInfo:
    """Translate a target's description."""
    return _to_proto(pb.ModelInfo, model)


def model_from_proto(message: pb.ModelInfo) -> ModelInfo:
    """Translate a target's description."""
    return _from_proto(ModelInfo, message)


def index_to_proto(index: IndexInfo) -> pb.IndexInfo:
    """Translate an index's description."""
    return pb.IndexInfo(**asdict(index) | {"modes": [_SEARCH_MODES[mode] for mode in index.modes]})


def index_from_proto(message: pb.IndexInfo) -> IndexInfo:
    """Translate an index's description.

    Raises:
        RefdraftError: a search mode that only a newer refdraft knows.
    """
    return IndexInfo(
        name=message.name,
        documents=message.documents,
        passages=message.passages,
        tokens=message.tokens,
        modes=tuple(_answered(_inverse(_SEARCH_MODES), mode, "modes") for mode in message.modes),
        tokenizer_fingerprint=message.tokenizer_fingerprint,
    )


def _prompt_to_proto(request: GenerateRequest) -> dict[str, Any]:
    prompt = request.prompt
    if isinstance(prompt, str):
        return {"raw_text" if request.raw else "text": prompt}
    if isinstance(prompt[0], Message):
        return {"chat": {"messages": [asdict(turn) for turn in cast("Sequence[Message]", prompt)]}}
    return {"token_ids": {"ids": prompt}}


def _prompt_from_proto(message: pb.GenerateRequest) -> str | tuple[Message, ...] | tuple[int, ...]:
    match message.WhichOneof("prompt"):
        case "chat":
            return tuple(_from_proto(Message, turn) for turn in message.chat.messages)
        case "token_ids":
            return tuple(message.token_ids.ids)
        case _:
            return message.raw_text or message.text


def _sampling_to_proto(sampling: Sampling) -> pb.Sampling:
    # Not by asdict, which copies deeply: not every mapping can be copied so.
    given = {field.name: getattr(sampling, field.name) for field in fields(sampling)}
    return pb.Sampling(**given | {"logit_bias": dict(sampling.logit_bias)})


def _sampling_from_proto(message: pb.Sampling) -> Sampling:
    lists = ("bad_words", "allowed_token_ids", "stop", "stop_token_ids")
    scalars = [field.name for field in fields(Sampling) if field.name not in (*lists, "logit_bias")]
    given = _present(message, *scalars) | {name: tuple(getattr(message, name)) for name in lists}
    return Sampling(**given, logit_bias=dict(message.logit_bias))


def _structure_to_proto(structure: Structure) -> pb.Structure:
    given: dict[str, Any] = {structure.kind: pb.JsonObject() if structure.kind == "json_object" else structure.source}
    return pb.Structure(**given)


def _structure_from_proto(message: pb.Structure) -> Structure:
    kind = message.WhichOneof("kind")
    if kind is None:
        raise InvalidRequestError(f"choose one of {', '.join(STRUCTURE_KINDS)}", field="structure")
    return Structure(kind=kind, source="" if kind == "json_object" else getattr(message, kind))


def _but_logprobs(event: Delta | Completion) -> dict[str, Any]:
    # There may be 21 of them for each token; asdict takes nearly three times as long as what follows.
    given = asdict(replace(event, logprobs=()))
    del given["logprobs"]
    return given


def _logprob_to_proto(place: TokenLogprob) -> pb.TokenLogprob:
    top = [pb.TopLogprob(token_id=likely.token_id, logprob=likely.logprob) for likely in place.top]
    return pb.TokenLogprob(token_id=place.token_id, logprob=place.logprob, top=top)


def _logprobs_from_proto(messages: Iterable[pb.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            token_id=message.token_id,
            logprob=message.logprob,
            top=tuple(TopLogprob(token_id=likely.token_id, logprob=likely.logprob) for likely in message.top),
        )
        for message in messages
    )


def _drafting_to_proto(drafting: Drafting) -> pb.Drafting:
    return pb.Drafting(
        # No source at all is no drafting; on the wire an empty list means every source.
        enabled=drafting.enabled and len(drafting.sources) > 0,
        max_draft_tokens=drafting.max_draft_tokens,
        sources=[_SOURCES[source] for source in drafting.sources],
        corpus=drafting.corpus,
        source_options=[
            pb.DraftSourceOptions(
                source=_SOURCES[source], weight=drafting.weights.get(source), max_tokens=drafting.limits.get(source)
            )
            for source in SOURCE_NAMES
            if source in drafting.weights or source in drafting.limits
        ],
    )


def _drafting_from_proto(message: pb.Drafting) -> Drafting:
    given = _present(message, "enabled", "max_draft_tokens")
    names = _inverse(_SOURCES)
    if message.sources:
        given["sources"] = tuple(_asked(names, source, "drafting.sources") for source in message.sources)
    named = {_asked(names, each.source, "drafting.source_options"): each for each in message.source_options}
    if len(named) < len(message.source_options):
        raise InvalidRequestError("names a source twice", field="drafting.source_options")
    return Drafting(
        corpus=message.corpus,
        weights={source: each.weight for source, each in named.items() if each.HasField("weight")},
        limits={source: each.max_tokens for source, each in named.items() if each.HasField("max_tokens")},
        **given,
    )


def _to_proto(kind: type[_M], value: "DataclassInstance") -> _M:
    """Make a message whose fields have the dataclass's names and types, nested ones too."""
    return kind(**asdict(value))


def _from_proto(kind: type[_D], message: google.protobuf.message.Message) -> _D:
    """Make a dataclass whose fields have the message's names and types."""
    return kind(**{field.name: getattr(message, field.name) for field in fields(kind)})


def _present(message: google.protobuf.message.Message, *names: str) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def _inverse(table: Mapping[_K, _V]) -> dict[_V, _K]:
    return {value: key for key, value in table.items()}


def _asked(table: Mapping[_K, _V], key: _K, field: str) -> _V:
    if key not in table:
        raise InvalidRequestError(f"{key!r} is unknown; choose among {list(table)}", field=field)
    return table[key]


def _answered(table: Mapping[_K, _V], key: _K, field: str) -> _V:
    if key not in table:
        raise RefdraftError(f"the server sent {field} {key!r}, unknown to this client; upgrade refdraft")
    return table[key]
