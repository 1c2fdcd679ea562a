"""What goes over the wire comes out as it went in."""

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdraft.errors import InvalidRequestError
from refdraft.service import convert
from refdraft.service.types import (
    PLACEMENTS,
    SEARCH_MODES,
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
    Reference,
    Retrieval,
    Sampling,
    SourceStatistics,
    Structure,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from refdraft.v1 import refdraft_pb2 as pb

FINISH_REASONS: tuple[FinishReason, ...] = ("stop", "stop_token", "stop_string", "length", "context_limit")

counts = st.integers(0, 2**31 - 1)
big_counts = st.integers(0, 2**63 - 1)
finite = st.floats(allow_nan=False)
text = st.text(max_size=20)
token_ids = st.lists(counts, max_size=5).map(tuple)

retrievals = st.builds(
    Retrieval,
    index=text,
    top_k=counts,
    mode=st.none() | st.sampled_from(SEARCH_MODES),
    placement=st.sampled_from(PLACEMENTS),
    query=st.none() | text,
)
messages = st.builds(Message, role=text, content=text)
structures = st.just(Structure(kind="json_object")) | st.builds(
    Structure, kind=st.sampled_from(STRUCTURE_KINDS[1:]), source=text
)
requests = st.builds(
    GenerateRequest,
    prompt=text | st.lists(messages, min_size=1, max_size=3).map(tuple) | token_ids.filter(len),
    references=st.lists(st.builds(Reference, text=text, id=text), max_size=3).map(tuple),
    prediction=text,
    retrieval=st.none() | retrievals,
    sampling=st.builds(
        Sampling,
        max_tokens=counts,
        min_tokens=counts,
        n=counts,
        seed=st.none() | big_counts,
        temperature=finite,
        top_k=counts,
        top_p=finite,
        min_p=finite,
        repetition_penalty=finite,
        presence_penalty=finite,
        frequency_penalty=finite,
        logit_bias=st.dictionaries(counts, finite, max_size=3),
        bad_words=st.lists(text, max_size=3).map(tuple),
        allowed_token_ids=token_ids,
        stop=st.lists(text, max_size=3).map(tuple),
        stop_token_ids=token_ids,
        ignore_eos=st.booleans(),
        logprobs=st.none() | counts,
    ),
    structure=st.none() | structures,
    drafting=st.builds(
        Drafting,
        enabled=st.booleans(),
        max_draft_tokens=counts,
        sources=st.lists(st.sampled_from(SOURCE_NAMES), min_size=1, unique=True).map(tuple),
        corpus=text,
        weights=st.dictionaries(st.sampled_from(SOURCE_NAMES), finite, max_size=3),
        limits=st.dictionaries(st.sampled_from(SOURCE_NAMES), counts, max_size=3),
    ),
)
attributions = st.lists(
    st.builds(
        Attribution,
        output_start=counts,
        output_end=counts,
        document_id=text,
        document_start=counts,
        document_end=counts,
    ),
    max_size=3,
).map(tuple)
passages = st.builds(
    Passage,
    document_id=text,
    title=text,
    text=text,
    start=counts,
    score=finite,
    metadata=st.dictionaries(text, text, max_size=2),
)
top_logprobs = st.lists(st.builds(TopLogprob, token_id=counts, logprob=finite), max_size=2).map(tuple)
logprobs = st.lists(st.builds(TokenLogprob, token_id=counts, logprob=finite, top=top_logprobs), max_size=2).map(tuple)
deltas = st.builds(Delta, text=text, token_ids=token_ids, attributions=attributions, logprobs=logprobs, sample=counts)
statistics = st.builds(SourceStatistics, drafted_tokens=counts, accepted_tokens=counts)
completions = st.builds(
    Completion,
    text=text,
    token_ids=token_ids,
    finish_reason=st.sampled_from(FINISH_REASONS),
    usage=st.builds(Usage, prompt_tokens=counts, completion_tokens=counts, accepted_prediction_tokens=counts),
    drafting=st.builds(
        DraftingStatistics,
        steps=counts,
        drafted_tokens=counts,
        accepted_tokens=counts,
        tokens_per_step=finite,
        by_source=st.dictionaries(text, statistics, max_size=3),
    ),
    attributions=attributions,
    passages=st.lists(passages, max_size=2).map(tuple),
    logprobs=logprobs,
    sample=counts,
    seed=big_counts,
)


@given(requests)
def test_requests_survive_the_wire(request: GenerateRequest) -> None:
    wire = convert.request_to_proto(request).SerializeToString()
    assert convert.request_from_proto(pb.GenerateRequest.FromString(wire)) == request


@given(deltas | completions)
def test_events_survive_the_wire(event: Delta | Completion) -> None:
    wire = convert.event_to_proto(event).SerializeToString()
    assert convert.event_from_proto(pb.GenerateStreamResponse.FromString(wire)) == event


def test_descriptions_survive_the_wire() -> None:
    model = ModelInfo(
        name="m",
        vocabulary_size=9,
        context_limit=8192,
        dtype="float32",
        device="cpu",
        numerics="fast",
        slots=4,
        tokenizer_fingerprint="abc",
    )
    index = IndexInfo(name="i", documents=1, passages=2, tokens=3, modes=("bm25", "dense"), tokenizer_fingerprint="abc")
    assert convert.model_from_proto(convert.model_to_proto(model)) == model
    assert convert.index_from_proto(convert.index_to_proto(index)) == index


def test_raw_prompts_stay_raw() -> None:
    request = GenerateRequest(prompt="a", raw=True)
    assert convert.request_from_proto(convert.request_to_proto(request)).raw


def test_absent_fields_are_the_dataclasses_defaults() -> None:
    assert convert.request_from_proto(pb.GenerateRequest(text="a")) == GenerateRequest(prompt="a")
    assert convert.retrieval_from_proto(pb.Retrieval(index="a")) == Retrieval(index="a")


def test_zero_is_not_absent() -> None:
    message = pb.GenerateRequest(text="a")
    message.sampling.max_tokens = 0
    message.sampling.top_p = 0
    message.sampling.repetition_penalty = 0
    message.sampling.n = 0
    message.sampling.logprobs = 0
    message.drafting.enabled = False
    request = convert.request_from_proto(message)
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.top_p, sampling.repetition_penalty, sampling.n) == (0, 0.0, 0.0, 0)
    assert sampling.logprobs == 0
    assert not request.drafting.enabled


def test_any_mapping_of_any_integers_is_sent() -> None:
    bias: Any = MappingProxyType({np.int64(3): np.float32(0.5)})
    message = convert.request_to_proto(GenerateRequest(prompt="a", sampling=Sampling(logit_bias=bias)))
    assert dict(message.sampling.logit_bias) == {3: 0.5}


def test_a_structure_of_no_kind_is_the_callers_error() -> None:
    message = pb.GenerateRequest(text="a", structure=pb.Structure())
    with pytest.raises(InvalidRequestError, match="structure: choose one of json_object, json_schema, regex, lark"):
        convert.request_from_proto(message)


def test_a_source_that_is_named_twice_is_refused() -> None:
    message = convert.request_to_proto(GenerateRequest(prompt="a", drafting=Drafting(weights={"prompt": 2.0})))
    message.drafting.source_options.append(message.drafting.source_options[0])
    with pytest.raises(InvalidRequestError, match=r"drafting\.source_options"):
        convert.request_from_proto(message)


def test_no_sources_is_no_drafting() -> None:
    request = GenerateRequest(prompt="a", drafting=Drafting(sources=()))
    assert not convert.request_from_proto(convert.request_to_proto(request)).drafting.enabled


def test_enum_values_without_a_name_are_the_callers_error() -> None:
    message = pb.GenerateRequest(text="a")
    message.drafting.sources.append(pb.DRAFT_SOURCE_UNSPECIFIED)
    with pytest.raises(InvalidRequestError, match=r"drafting\.sources"):
        convert.request_from_proto(message)
