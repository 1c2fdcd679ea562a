"""The client against a real server: what it returns, and what its failures look like."""

import socket
import time
from collections.abc import Iterator

import pytest

from refdraft.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PreconditionError,
    RefdraftError,
    UnavailableError,
)
from refdraft.service.channel import MESSAGE_LIMIT_BYTES
from refdraft.service.client import Client
from refdraft.service.types import Completion, Delta, GenerateRequest, Message, Reference, Retrieval, Sampling

from .conftest import ERRORS, LOGPROBS, Service


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.address, timeout_s=30) as client:
        yield client


def test_generate_returns_what_the_pipeline_returned(client: Client, service: Service) -> None:
    assert client.generate(GenerateRequest(prompt="one two")) == service.pipeline._completion("one two")


def test_stream_yields_deltas_then_the_completion(client: Client) -> None:
    *deltas, completion = client.stream(GenerateRequest(prompt="one two"))
    assert deltas == [Delta(text="one ", token_ids=(4,)), Delta(text="two ", token_ids=(4,))]
    assert isinstance(completion, Completion)


def test_samples_come_in_their_order(client: Client, service: Service) -> None:
    request = GenerateRequest(prompt="one two", sampling=Sampling(n=3, logprobs=1))
    expected = tuple(service.pipeline._completion("one two", sample, LOGPROBS) for sample in range(3))
    assert client.generate_samples(request) == expected
    events = list(client.stream(request))
    for completion in expected:
        *deltas, last = [event for event in events if event.sample == completion.sample]
        assert last == completion
        assert "".join(delta.text for delta in deltas if isinstance(delta, Delta)) == completion.text
        assert [logprob for delta in deltas for logprob in delta.logprobs] == list(completion.logprobs)


def test_one_completion_is_of_one_sample(client: Client) -> None:
    request = GenerateRequest(prompt="one two", sampling=Sampling(n=2))
    with pytest.raises(InvalidRequestError, match="generate_samples") as caught:
        client.generate(request)
    assert caught.value.field == "sampling.n"


def test_chats_arrive(client: Client) -> None:
    assert "hello" in client.generate(GenerateRequest(prompt=[Message(role="user", content="hello")])).text


def test_closing_a_stream_cancels_the_request(client: Client, service: Service) -> None:
    stream = client.stream(GenerateRequest(prompt="endless"))
    next(stream)
    assert service.pipeline.active == 1
    stream.close()
    deadline = time.monotonic() + 5
    while service.pipeline.active and time.monotonic() < deadline:
        time.sleep(0.01)
    assert service.pipeline.active == 0


def test_retrieve_and_descriptions(client: Client, service: Service) -> None:
    passages = client.retrieve(Retrieval(index="manual", query="what", top_k=2))
    assert [(passage.text, passage.metadata) for passage in passages] == [("what", {"a": "b"})] * 2
    assert client.model() == service.pipeline.model_info()
    assert client.indexes() == service.pipeline.index_infos()


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [("missing", NotFoundError), ("stale", PreconditionError), ("overloaded", OverloadedError)],
)
def test_errors_are_the_servers_own(client: Client, prompt: str, kind: type[RefdraftError]) -> None:
    for call in (client.generate, lambda request: list(client.stream(request))):
        with pytest.raises(kind) as caught:
            call(GenerateRequest(prompt=prompt))
        assert str(caught.value) == str(ERRORS[prompt])


def test_errors_keep_their_particulars(client: Client) -> None:
    with pytest.raises(OverloadedError) as overloaded:
        client.generate(GenerateRequest(prompt="overloaded"))
    assert overloaded.value.retry_after_s == 2.5
    with pytest.raises(InvalidRequestError) as invalid:
        client.generate(GenerateRequest(prompt="a", sampling=Sampling(max_tokens=0)))
    assert invalid.value.field == "sampling.max_tokens"
    assert str(invalid.value).count("sampling.max_tokens") == 1


def test_ten_thousand_references_pass_and_one_more_does_not(client: Client) -> None:
    references = [Reference(text=f"reference {number}") for number in range(10_001)]
    assert client.generate(GenerateRequest(prompt="a", references=references[:-1])).text == "a "
    with pytest.raises(InvalidRequestError, match="at most 10000"):
        client.generate(GenerateRequest(prompt="a", references=references))


def test_a_retrieval_without_a_query_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match=r"retrieval\.query"):
        client.retrieve(Retrieval(index="manual"))


def test_an_unknown_index_is_not_found(client: Client) -> None:
    with pytest.raises(NotFoundError, match="moon"):
        client.retrieve(Retrieval(index="moon", query="a"))


def test_a_timeout_is_an_error_of_its_own(client: Client) -> None:
    with pytest.raises(DeadlineExceededError):
        client.generate(GenerateRequest(prompt="endless"), timeout_s=0.1)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (GenerateRequest(prompt="a", sampling=Sampling(stop="abc")), "sampling.stop"),
        (GenerateRequest(prompt="a", sampling=Sampling(max_tokens=2**40)), "sampling.max_tokens"),
        (GenerateRequest(prompt=b"a"), "prompt"),
        (GenerateRequest(prompt="\ud800"), "prompt"),
        (GenerateRequest(prompt=[1], raw=True), "raw"),
        (GenerateRequest(prompt="a" * (MESSAGE_LIMIT_BYTES + 1)), "request"),
    ],
)
def test_what_no_server_accepts_is_not_sent(request_: GenerateRequest, field: str) -> None:
    with Client("127.0.0.1:1") as client:
        for call in (client.generate, lambda request: list(client.stream(request))):
            with pytest.raises(InvalidRequestError) as caught:
                call(request_)
            assert caught.value.field == field


def test_a_request_too_large_says_how_large_it_may_be(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match=str(MESSAGE_LIMIT_BYTES)):
        client.retrieve(Retrieval(index="manual", query="a" * (MESSAGE_LIMIT_BYTES + 1)))


def test_a_closed_client_says_so(client: Client) -> None:
    client.close()
    request = GenerateRequest(prompt="a")
    for call in (client.model, lambda: client.generate(request), lambda: list(client.stream(request))):
        with pytest.raises(PreconditionError, match="closed"):
            call()


def test_closing_while_an_answer_streams_ends_it_with_an_error(client: Client) -> None:
    stream = client.stream(GenerateRequest(prompt="endless"))
    next(stream)
    client.close()
    with pytest.raises(RefdraftError):
        list(stream)


@pytest.mark.parametrize("character", ["\N{OTTER}", "%", "\n", "a", "水"])
def test_a_long_message_arrives_cut(client: Client, character: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (NotFoundError(character * 4000), InvalidRequestError(character * 4000, field="prompt")):
        monkeypatch.setitem(ERRORS, "long", error)
        with pytest.raises(type(error)) as caught:
            client.generate(GenerateRequest(prompt="long"))
        assert str(error).startswith(str(caught.value))
        assert str(caught.value).count(character) > 100


def test_no_server_is_unavailable_and_says_where() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with Client(address) as client, pytest.raises(UnavailableError, match=address):
            client.model()
