"""Every value that cannot be accepted is refused with its field's name; the ends of each range are accepted."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refdraft.errors import InvalidRequestError
from refdraft.service.types import Drafting, GenerateRequest, Message, Reference, Retrieval, Sampling, Structure
from refdraft.service.validation import NO_LIMITS, Limits, validate, validate_retrieval, validate_single

LIMITS = Limits(max_tokens=1000, max_references=3, max_reference_bytes=10)
GOOD = GenerateRequest(prompt="a")


def sampling(**values: Any) -> GenerateRequest:
    return replace(GOOD, sampling=Sampling(**values))


def structure(kind: Any, source: Any, **values: Any) -> GenerateRequest:
    return replace(sampling(**values), structure=Structure(kind=kind, source=source))


def drafting(**values: Any) -> GenerateRequest:
    return replace(GOOD, drafting=Drafting(**values))


def retrieval(**values: Any) -> GenerateRequest:
    return replace(GOOD, retrieval=Retrieval(**{"index": "i"} | values))


def references(*texts: str, prediction: str = "") -> GenerateRequest:
    return replace(GOOD, references=[Reference(text=text) for text in texts], prediction=prediction)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (replace(GOOD, prompt=""), "prompt"),
        (replace(GOOD, prompt=[]), "prompt"),
        (replace(GOOD, prompt=[1, -1]), "prompt[1]"),
        (replace(GOOD, prompt=[2**31]), "prompt[0]"),
        (replace(GOOD, prompt="\udcff"), "prompt"),
        (replace(GOOD, prompt=[1], raw=True), "raw"),
        (replace(GOOD, prompt=[Message(role="user", content="a")], raw=True), "raw"),
        (sampling(max_tokens=0), "sampling.max_tokens"),
        (sampling(max_tokens=-1), "sampling.max_tokens"),
        (sampling(max_tokens=1001), "sampling.max_tokens"),
        (sampling(temperature=-0.1), "sampling.temperature"),
        (sampling(temperature=math.nan), "sampling.temperature"),
        (sampling(temperature=math.inf), "sampling.temperature"),
        (sampling(top_p=0.0), "sampling.top_p"),
        (sampling(top_p=2.0), "sampling.top_p"),
        (sampling(top_p=math.nan), "sampling.top_p"),
        (sampling(temperature=10**400), "sampling.temperature"),
        (sampling(top_k=-1), "sampling.top_k"),
        (sampling(top_k=2**31), "sampling.top_k"),
        (sampling(seed=-1), "sampling.seed"),
        (sampling(seed=2**63), "sampling.seed"),
        (sampling(stop=["a"] * 17), "sampling.stop"),
        (sampling(stop=["a", ""]), "sampling.stop"),
        (sampling(stop="ab"), "sampling.stop"),
        (sampling(stop=["\ud800"]), "sampling.stop"),
        (sampling(max_tokens=9, min_tokens=10), "sampling.min_tokens"),
        (sampling(min_tokens=-1), "sampling.min_tokens"),
        (sampling(n=0), "sampling.n"),
        (sampling(n=17), "sampling.n"),
        (sampling(logprobs=-1), "sampling.logprobs"),
        (sampling(logprobs=21), "sampling.logprobs"),
        (sampling(min_p=-0.1), "sampling.min_p"),
        (sampling(min_p=1.1), "sampling.min_p"),
        (sampling(min_p=math.nan), "sampling.min_p"),
        (sampling(repetition_penalty=0.0), "sampling.repetition_penalty"),
        (sampling(repetition_penalty=10.1), "sampling.repetition_penalty"),
        (sampling(repetition_penalty=math.nan), "sampling.repetition_penalty"),
        (sampling(presence_penalty=-2.1), "sampling.presence_penalty"),
        (sampling(presence_penalty=2.1), "sampling.presence_penalty"),
        (sampling(presence_penalty=math.nan), "sampling.presence_penalty"),
        (sampling(frequency_penalty=-2.1), "sampling.frequency_penalty"),
        (sampling(frequency_penalty=2.1), "sampling.frequency_penalty"),
        (sampling(frequency_penalty=math.nan), "sampling.frequency_penalty"),
        (sampling(logit_bias={-1: 0.0}), "sampling.logit_bias"),
        (sampling(logit_bias={2**31: 0.0}), "sampling.logit_bias"),
        (sampling(logit_bias={5: 100.1}), "sampling.logit_bias[5]"),
        (sampling(logit_bias={5: -100.1}), "sampling.logit_bias[5]"),
        (sampling(logit_bias={5: math.nan}), "sampling.logit_bias[5]"),
        (sampling(logit_bias=dict.fromkeys(range(1025), 0.0)), "sampling.logit_bias"),
        (sampling(bad_words=["a"] * 257), "sampling.bad_words"),
        (sampling(bad_words=["a" * 257]), "sampling.bad_words"),
        (sampling(bad_words=["a", ""]), "sampling.bad_words"),
        (sampling(bad_words=["\ud800"]), "sampling.bad_words"),
        (sampling(bad_words="ab"), "sampling.bad_words"),
        (sampling(allowed_token_ids=[1, -1]), "sampling.allowed_token_ids[1]"),
        (sampling(stop_token_ids=[2**31]), "sampling.stop_token_ids[0]"),
        (sampling(stop_token_ids=[1] * 257), "sampling.stop_token_ids"),
        (structure("json_object", "{}"), "structure.source"),
        (structure("json_schema", ""), "structure.source"),
        (structure("regex", "a" * (64 * 1024 + 1)), "structure.source"),
        (structure("regex", "\ud800"), "structure.source"),
        (structure("moon", "a"), "structure.kind"),
        (structure("regex", "a", ignore_eos=True), "sampling.ignore_eos"),
        (structure("regex", "a", min_tokens=1), "sampling.min_tokens"),
        (structure("regex", "a", allowed_token_ids=[1]), "sampling.allowed_token_ids"),
        (drafting(sources=["moon"]), "drafting.sources"),
        (drafting(max_draft_tokens=-1), "drafting.max_draft_tokens"),
        (drafting(weights={"prompt": 0.05}), "drafting.weights[prompt]"),
        (drafting(weights={"prompt": float("nan")}), "drafting.weights[prompt]"),
        (drafting(weights={"moon": 1.0}), "drafting.weights"),
        (drafting(weights=[1.0]), "drafting.weights"),
        (drafting(limits={"references": -1}), "drafting.limits[references]"),
        (drafting(limits={"output": 5}), "drafting.limits"),
        (drafting(corpus=3), "drafting.corpus"),
        (drafting(max_draft_tokens=65), "drafting.max_draft_tokens"),
        (references("a", "b", "c", "d"), "references"),
        (references("12345678", prediction="abc"), "references"),
        (references("éééééé"), "references"),
        (references("a", "\ud800"), "references[1].text"),
        (retrieval(index=""), "retrieval.index"),
        (retrieval(top_k=0), "retrieval.top_k"),
        (retrieval(top_k=101), "retrieval.top_k"),
        (retrieval(mode="moon"), "retrieval.mode"),
        (retrieval(placement="moon"), "retrieval.placement"),
        (retrieval(query=" "), "retrieval.query"),
    ],
)
def test_refused_by_field(request_: GenerateRequest, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        validate(request_, LIMITS)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def prompt(value: Any) -> GenerateRequest:
    return replace(GOOD, prompt=value)


WRONG_TYPES: Any = [
    ("a prompt", "request"),
    (prompt(None), "prompt"),
    (prompt(b"abc"), "prompt"),
    (prompt({"role": "user"}), "prompt"),
    (prompt(["a"]), "prompt[0]"),
    (prompt([1, True]), "prompt[1]"),
    (prompt([1, 2.0]), "prompt[1]"),
    (prompt([1, Message(role="user", content="a")]), "prompt[1]"),
    (prompt([Message(role="user", content="a"), 1]), "prompt[1]"),
    (prompt([Message(role="user", content=None)]), "prompt[0].content"),  # type: ignore[arg-type]
    (prompt([Message(role=1, content="a")]), "prompt[0].role"),  # type: ignore[arg-type]
    (replace(GOOD, raw="no"), "raw"),  # type: ignore[arg-type]
    (replace(GOOD, references="abc"), "references"),  # type: ignore[arg-type]
    (replace(GOOD, references=["abc"]), "references[0]"),  # type: ignore[list-item]
    (references("a", None), "references[1].text"),  # type: ignore[arg-type]
    (replace(GOOD, references=[Reference(id=1, text="a")]), "references[0].id"),  # type: ignore[arg-type]
    (replace(GOOD, prediction=None), "prediction"),  # type: ignore[arg-type]
    (replace(GOOD, sampling={"seed": 1}), "sampling"),  # type: ignore[arg-type]
    (sampling(max_tokens=5.0), "sampling.max_tokens"),
    (sampling(max_tokens=True), "sampling.max_tokens"),
    (sampling(max_tokens=None), "sampling.max_tokens"),
    (sampling(temperature="0"), "sampling.temperature"),
    (sampling(temperature=False), "sampling.temperature"),
    (sampling(top_k="1"), "sampling.top_k"),
    (sampling(top_p="1"), "sampling.top_p"),
    (sampling(top_p=1j), "sampling.top_p"),
    (sampling(seed="7"), "sampling.seed"),
    (sampling(stop=None), "sampling.stop"),
    (sampling(stop=b"ab"), "sampling.stop"),
    (sampling(stop=[1]), "sampling.stop"),
    (sampling(min_tokens=None), "sampling.min_tokens"),
    (sampling(n=True), "sampling.n"),
    (sampling(logprobs=1.0), "sampling.logprobs"),
    (sampling(min_p="0"), "sampling.min_p"),
    (sampling(repetition_penalty=True), "sampling.repetition_penalty"),
    (sampling(presence_penalty=None), "sampling.presence_penalty"),
    (sampling(frequency_penalty=1j), "sampling.frequency_penalty"),
    (sampling(logit_bias=[(1, 2.0)]), "sampling.logit_bias"),
    (sampling(logit_bias={"1": 2.0}), "sampling.logit_bias"),
    (sampling(logit_bias={1: "2"}), "sampling.logit_bias[1]"),
    (sampling(bad_words=None), "sampling.bad_words"),
    (sampling(bad_words=[b"a"]), "sampling.bad_words"),
    (sampling(allowed_token_ids=5), "sampling.allowed_token_ids"),
    (sampling(allowed_token_ids=["a"]), "sampling.allowed_token_ids[0]"),
    (sampling(stop_token_ids={1}), "sampling.stop_token_ids"),
    (sampling(stop_token_ids=[1.0]), "sampling.stop_token_ids[0]"),
    (sampling(ignore_eos=1), "sampling.ignore_eos"),
    (replace(GOOD, structure="json"), "structure"),  # type: ignore[arg-type]
    (structure(None, "a"), "structure.kind"),
    (structure("regex", b"a"), "structure.source"),
    (replace(GOOD, drafting=False), "drafting"),  # type: ignore[arg-type]
    (drafting(enabled="no"), "drafting.enabled"),
    (drafting(max_draft_tokens=1.5), "drafting.max_draft_tokens"),
    (drafting(sources="prompt"), "drafting.sources"),
    (drafting(sources=[["prompt"]]), "drafting.sources"),
    (replace(GOOD, retrieval="docs"), "retrieval"),  # type: ignore[arg-type]
    (retrieval(index=None), "retrieval.index"),
    (retrieval(top_k="5"), "retrieval.top_k"),
    (retrieval(mode=["bm25"]), "retrieval.mode"),
    (retrieval(placement=None), "retrieval.placement"),
    (retrieval(query=5), "retrieval.query"),
]


@pytest.mark.parametrize(("request_", "field"), WRONG_TYPES)
def test_wrong_types_are_refused_by_field_with_and_without_limits(request_: Any, field: str) -> None:
    for limits in (LIMITS, NO_LIMITS):
        with pytest.raises(InvalidRequestError, match="must be") as caught:
            validate(request_, limits)
        assert caught.value.field == field


@pytest.mark.parametrize(
    "prompt",
    [" \n", [1, 2], [Message(role="user", content="\t")], [Message(role="system", content="a")]],
)
def test_a_prompt_without_text_cannot_be_retrieved_for(prompt: Any) -> None:
    searching = replace(GOOD, prompt=prompt, retrieval=Retrieval(index="i"))
    with pytest.raises(InvalidRequestError, match="say what to search for") as caught:
        validate(searching, LIMITS)
    assert caught.value.field == "retrieval.query"
    validate(replace(searching, retrieval=Retrieval(index="i", query="q")), LIMITS)
    validate(replace(searching, retrieval=None), LIMITS)


@pytest.mark.parametrize(
    "request_",
    [
        GOOD,
        prompt(list(np.arange(3))),
        sampling(max_tokens=np.int64(1), temperature=np.float32(0.5), top_p=1, seed=np.uint64(2**63 - 1)),
        replace(GOOD, prompt=[0, 1]),
        replace(GOOD, prompt=[Message(role="user", content="")]),
        sampling(max_tokens=1, temperature=0.0, top_p=1.0, top_k=0, seed=0),
        sampling(max_tokens=1000, temperature=5.0, top_p=1e-9, top_k=10**9, seed=2**63 - 1, stop=["a"] * 16),
        sampling(max_tokens=5, min_tokens=5, n=16, logprobs=20, min_p=1.0, repetition_penalty=10, ignore_eos=True),
        sampling(min_tokens=0, n=1, logprobs=0, min_p=0, repetition_penalty=1e-9),
        sampling(presence_penalty=2, frequency_penalty=-2.0),
        sampling(presence_penalty=-2, frequency_penalty=2.0),
        sampling(logit_bias=dict.fromkeys(range(1024), 100.0)),
        sampling(logit_bias={0: -100, np.int64(2**31 - 1): np.float32(0.5)}),
        sampling(bad_words=["é" * 256] * 256, allowed_token_ids=range(5), stop_token_ids=np.arange(256).tolist()),
        structure("json_object", ""),
        structure("json_schema", "{}", stop=["}"], stop_token_ids=[1], bad_words=["a"], n=2),
        structure("lark", "é" * (32 * 1024)),
        drafting(sources=[], max_draft_tokens=0),
        drafting(max_draft_tokens=64),
        drafting(weights={"prompt": 16, "target": 0.0625}, limits={"history": 0}, corpus="docs"),
        references("123", "456", "", prediction="7890"),
        retrieval(top_k=1),
        retrieval(top_k=100, mode="dense", placement="draft_only", query="q"),
    ],
)
def test_accepted(request_: GenerateRequest) -> None:
    validate(request_, LIMITS)


def test_a_retrieval_on_its_own_needs_a_query() -> None:
    validate_retrieval(Retrieval(index="i"))
    with pytest.raises(InvalidRequestError, match=r"retrieval\.query"):
        validate_retrieval(Retrieval(index="i"), query_required=True)


def test_where_one_completion_is_returned_one_sample_may_be_asked_for() -> None:
    validate_single(GOOD)
    with pytest.raises(InvalidRequestError, match=r"sampling\.n: .* call generate_samples"):
        validate_single(sampling(n=2))
