"""The wire's side of the service, through a real channel and the bare stubs."""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from refdraft.service.channel import MESSAGE_LIMIT_BYTES
from refdraft.v1 import refdraft_pb2 as pb
from refdraft.v1 import refdraft_pb2_grpc as pb_grpc

from .conftest import Service


@pytest.fixture
async def channel(service: Service) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(service.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        yield channel


async def failure(channel: grpc.aio.Channel, request: pb.GenerateRequest) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await pb_grpc.GenerationServiceStub(channel).Generate(request)
    return caught.value


def status_details(error: grpc.aio.AioRpcError) -> Status:
    metadata = dict(error.trailing_metadata())
    value = metadata["grpc-status-details-bin"]
    assert isinstance(value, bytes)
    return Status.FromString(value)


async def test_a_stream_is_deltas_then_one_completion(channel: grpc.aio.Channel) -> None:
    request = pb.GenerateStreamRequest(request=pb.GenerateRequest(text="one two three"))
    events = [event async for event in pb_grpc.GenerationServiceStub(channel).GenerateStream(request)]
    assert [event.WhichOneof("event") for event in events] == ["delta"] * 3 + ["completion"]
    assert "".join(event.delta.text for event in events) == events[-1].completion.text == "one two three "


async def test_several_samples_interleave_and_each_ends_with_its_completion(channel: grpc.aio.Channel) -> None:
    request = pb.GenerateRequest(text="one two", sampling=pb.Sampling(n=2))
    stub = pb_grpc.GenerationServiceStub(channel)
    events = [event async for event in stub.GenerateStream(pb.GenerateStreamRequest(request=request))]
    assert [event.delta.sample for event in events if event.HasField("delta")] == [0, 1, 0, 1]
    completions = [event.completion for event in events if event.HasField("completion")]
    assert sorted(completion.sample for completion in completions) == [0, 1]
    response = await stub.Generate(request)
    assert [completion.sample for completion in response.completions] == [0, 1]
    assert [completion.text for completion in response.completions] == ["one two ", "one one two two "]


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ("", grpc.StatusCode.INVALID_ARGUMENT),
        ("overloaded", grpc.StatusCode.RESOURCE_EXHAUSTED),
        ("missing", grpc.StatusCode.NOT_FOUND),
        ("stale", grpc.StatusCode.FAILED_PRECONDITION),
        ("leaving", grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_each_error_has_its_code(channel: grpc.aio.Channel, prompt: str, code: grpc.StatusCode) -> None:
    request = pb.GenerateRequest(text=prompt)
    error = await failure(channel, request)
    assert error.code() is code
    assert status_details(error).code == code.value[0]
    assert status_details(error).message == error.details()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in pb_grpc.GenerationServiceStub(channel).GenerateStream(pb.GenerateStreamRequest(request=request)):
            pass
    assert caught.value.code() is code


async def test_invalid_argument_names_the_field(channel: grpc.aio.Channel) -> None:
    request = pb.GenerateRequest(text="a", sampling=pb.Sampling(top_p=2))
    error = await failure(channel, request)
    bad = BadRequest()
    assert status_details(error).details[0].Unpack(bad)
    assert bad.field_violations[0].field == "sampling.top_p"
    assert error.details() == f"sampling.top_p: {bad.field_violations[0].description}"


async def test_resource_exhausted_says_when_to_retry(channel: grpc.aio.Channel) -> None:
    retry = RetryInfo()
    assert status_details(await failure(channel, pb.GenerateRequest(text="overloaded"))).details[0].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 2500


async def test_a_bug_is_logged_and_not_shown(channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        error = await failure(channel, pb.GenerateRequest(text="bug"))
    assert error.code() is grpc.StatusCode.INTERNAL
    message = error.details() or ""
    assert "secret" not in message
    request_id = message.split("request id ")[1].split(";")[0]
    assert any(request_id in record.getMessage() and record.exc_info for record in caplog.records)


async def test_messages_over_the_limit_are_refused(channel: grpc.aio.Channel) -> None:
    error = await failure(channel, pb.GenerateRequest(text="a" * (MESSAGE_LIMIT_BYTES + 1)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_messages_over_grpcs_default_limit_are_accepted(channel: grpc.aio.Channel) -> None:
    request = pb.GenerateRequest(text="a", references=[pb.Reference(text="b" * (6 << 20))])
    response = await pb_grpc.GenerationServiceStub(channel).Generate(request)
    assert response.completions[0].text == "a "


@pytest.mark.parametrize("leave", ["cancel", "deadline", "disconnect"])
async def test_a_client_that_leaves_frees_its_slot(service: Service, leave: str) -> None:
    request = pb.GenerateStreamRequest(request=pb.GenerateRequest(text="endless"))
    async with grpc.aio.insecure_channel(service.address) as channel:
        call = pb_grpc.GenerationServiceStub(channel).GenerateStream(
            request, timeout=0.2 if leave == "deadline" else None
        )
        await anext(aiter(call))
        assert service.pipeline.active == 1
        if leave == "cancel":
            call.cancel()
        if leave == "deadline":
            with pytest.raises(grpc.aio.AioRpcError):
                [event async for event in call]
    for _ in range(200):
        if service.pipeline.active == 0:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the stream is still running")


async def test_fifty_at_once_get_their_own_answers(channel: grpc.aio.Channel) -> None:
    stub = pb_grpc.GenerationServiceStub(channel)
    responses = await asyncio.gather(
        *(stub.Generate(pb.GenerateRequest(text=f"number {number}")) for number in range(50))
    )
    assert [response.completions[0].text for response in responses] == [f"number {n} " for n in range(50)]


async def test_health_answers_for_each_service(channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", "refdraft.v1.GenerationService", "refdraft.v1.RetrievalService"):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_lists_the_services(channel: grpc.aio.Channel) -> None:
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    await call.done_writing()
    names = {service.name for service in answer.list_services_response.service}
    assert {"refdraft.v1.GenerationService", "refdraft.v1.RetrievalService", "grpc.health.v1.Health"} <= names
