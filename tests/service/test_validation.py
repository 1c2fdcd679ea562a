"""Every value that cannot be accepted is refused with its field's name; the ends of each range are accepted."""

import math
from dataclasses import replace
from typing import Any

import pytest

from refdraft.errors import InvalidRequestError
from refdraft.service.types import Drafting, GenerateRequest, Message, Reference, Retrieval, Sampling
from refdraft.service.validation import Limits, validate, validate_retrieval

LIMITS = Limits(max_tokens=1000, max_references=3, max_reference_bytes=10)
GOOD = GenerateRequest(prompt="a")
MIXED: Any = [1, Message(role="user", content="a")]


def sampling(**values: Any) -> GenerateRequest:
    return replace(GOOD, sampling=Sampling(**values))


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
        (replace(GOOD, prompt=[1, -1]), "prompt"),
        (replace(GOOD, prompt=MIXED), "prompt"),
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
        (sampling(top_k=-1), "sampling.top_k"),
        (sampling(seed=-1), "sampling.seed"),
        (sampling(seed=2**63), "sampling.seed"),
        (sampling(stop=["a"] * 17), "sampling.stop"),
        (sampling(stop=["a", ""]), "sampling.stop"),
        (sampling(stop="ab"), "sampling.stop"),
        (drafting(sources=["moon"]), "drafting.sources"),
        (drafting(max_draft_tokens=-1), "drafting.max_draft_tokens"),
        (drafting(max_draft_tokens=65), "drafting.max_draft_tokens"),
        (references("a", "b", "c", "d"), "references"),
        (references("12345678", prediction="abc"), "references"),
        (references("éééééé"), "references"),
        (references("\ud800"), "references"),
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


@pytest.mark.parametrize(
    "request_",
    [
        GOOD,
        replace(GOOD, prompt=[0, 1]),
        replace(GOOD, prompt=[Message(role="user", content="")]),
        sampling(max_tokens=1, temperature=0.0, top_p=1.0, top_k=0, seed=0),
        sampling(max_tokens=1000, temperature=5.0, top_p=1e-9, top_k=10**9, seed=2**63 - 1, stop=["a"] * 16),
        drafting(sources=[], max_draft_tokens=0),
        drafting(max_draft_tokens=64),
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
