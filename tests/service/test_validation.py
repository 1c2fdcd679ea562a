"""Every value that cannot be accepted is refused with its field's name; the ends of each range are accepted."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refdraft.errors import InvalidRequestError
from refdraft.service.types import Drafting, GenerateRequest, Message, Reference, Retrieval, Sampling
from refdraft.service.validation import NO_LIMITS, Limits, validate, validate_retrieval

LIMITS = Limits(max_tokens=1000, max_references=3, max_reference_bytes=10)
GOOD = GenerateRequest(prompt="a")


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
        (drafting(sources=["moon"]), "drafting.sources"),
        (drafting(max_draft_tokens=-1), "drafting.max_draft_tokens"),
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
