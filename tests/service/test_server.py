"""Starting and stopping: the ready line, a port in use, draining on a signal, a word about open hosts."""

import asyncio
import logging
import os
import signal
import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from refdraft.errors import UnavailableError
from refdraft.service.server import Server, serve
from refdraft.v1 import refdraft_pb2 as pb
from refdraft.v1 import refdraft_pb2_grpc as pb_grpc

from .conftest import ScriptedPipeline


async def ready_address(capsys: pytest.CaptureFixture[str]) -> str:
    for _ in range(200):
        if line := capsys.readouterr().out:
            words = line.split()
            assert words[:-1] == ["refdraft", "is", "serving", "scripted", "on"]
            return words[-1]
        await asyncio.sleep(0.01)
    raise AssertionError("never ready")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_answers_finish(capsys: pytest.CaptureFixture[str], number: signal.Signals) -> None:
    serving = asyncio.create_task(serve(ScriptedPipeline(), port=0))
    address = await ready_address(capsys)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = pb_grpc.GenerationServiceStub(channel)
        call = stub.Generate(pb.GenerateRequest(text="word " * 200))
        await stub.GetModel(pb.GetModelRequest())
        os.kill(os.getpid(), number)
        assert (await call).completions[0].text == "word " * 200
        await asyncio.wait_for(serving, 5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetModel(pb.GetModelRequest(), timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_stopping_cancels_what_outlives_the_drain_and_reports_not_serving() -> None:
    pipeline = ScriptedPipeline()
    server = Server(pipeline, port=0)
    async with grpc.aio.insecure_channel(await server.start()) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        call = pb_grpc.GenerationServiceStub(channel).Generate(pb.GenerateRequest(text="endless"))
        while not pipeline.active:
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(server.stop(drain_s=0.2))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await call
        await stopping
    async with asyncio.timeout(10):  # gRPC has scheduled the cancellation; the handler runs when its turn comes
        while pipeline.active:
            await asyncio.sleep(0.01)


async def test_a_port_in_use_is_one_clear_line(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"port {port}: Address already in use.*--port") as caught:
            await Server(ScriptedPipeline(), port=port).start()
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("host", "port"), [("nowhere.invalid", 0), ("192.0.2.1", 0), ("127.0.0.1", 70_000)])
async def test_an_impossible_address_is_one_clear_line(host: str, port: int) -> None:
    with pytest.raises(UnavailableError, match="cannot listen on") as caught:
        await Server(ScriptedPipeline(), host=host, port=port).start()
    assert "\n" not in str(caught.value)


async def test_two_servers_do_not_share_a_port() -> None:
    first = Server(ScriptedPipeline(), port=0)
    address = await first.start()
    with pytest.raises(UnavailableError):
        await Server(ScriptedPipeline(), port=int(address.rpartition(":")[2])).start()
    await first.stop(drain_s=0)


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
async def test_open_hosts_are_warned_about(caplog: pytest.LogCaptureFixture, host: str, warned: bool) -> None:
    server = Server(ScriptedPipeline(), host=host, port=0)
    with caplog.at_level(logging.WARNING):
        await server.start()
    await server.stop(drain_s=0)
    assert ("neither encrypted" in caplog.text) is warned
