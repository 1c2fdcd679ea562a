"""The gRPC server: services, health, reflection, and a stop that lets answers finish."""

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from refdraft.errors import UnavailableError
from refdraft.service.channel import DEFAULT_HOST, DEFAULT_PORT, SERVER_OPTIONS
from refdraft.service.servicer import GenerationServicer, Generator, RetrievalServicer
from refdraft.v1 import refdraft_pb2 as pb
from refdraft.v1 import refdraft_pb2_grpc as pb_grpc

DRAIN_S = 30.0

logger = logging.getLogger(__name__)


class Server:
    """A pipeline behind a port. It neither loads nor closes the pipeline."""

    def __init__(self, pipeline: Generator, *, host: str = DEFAULT_HOST, port: int = DEFAULT_PORT) -> None:
        """Prepare; nothing listens before `start`.

        Args:
            pipeline: what answers.
            host: name or address to bind; anything but loopback is reachable by others, unencrypted.
            port: 0 lets the system choose.
        """
        self._pipeline = pipeline
        self._host = host
        self._port = port
        self._health = health.aio.HealthServicer()

    async def start(self) -> str:
        """Listen and answer.

        Returns:
            The address, HOST:PORT with the port in force.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        if not _is_loopback(self._host):
            logger.warning("%s may be reachable by others: traffic is neither encrypted nor authenticated", self._host)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        pb_grpc.add_GenerationServiceServicer_to_server(GenerationServicer(self._pipeline), self._server)
        pb_grpc.add_RetrievalServiceServicer_to_server(RetrievalServicer(self._pipeline), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        services = [service.full_name for service in pb.DESCRIPTOR.services_by_name.values()]
        reflection.enable_server_reflection([*services, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server)
        address = self._bind()
        await self._server.start()
        for service in ("", *services):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        return address

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Report NOT_SERVING, refuse new calls, give running ones `drain_s` seconds, then cancel them."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(drain_s)

    def _bind(self) -> str:
        check_address(self._host, self._port)  # gRPC would tell of a taken port on stderr and in its own words
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:
            return f"{host}:{self._server.add_insecure_port(f'{host}:{self._port}')}"
        except RuntimeError as error:
            raise _cannot_listen(self._host, self._port, error) from None


def check_address(host: str, port: int) -> None:
    """Bind an address and let it go again, to learn of a taken port before a model is loaded.

    Raises:
        UnavailableError: the address cannot be bound.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address[0], port))
    except (OSError, OverflowError) as error:
        raise _cannot_listen(host, port, error) from None


async def serve(pipeline: Generator, *, host: str = DEFAULT_HOST, port: int = DEFAULT_PORT) -> None:
    """Serve until SIGTERM or SIGINT, then stop gracefully; a second signal ends at once.

    Raises:
        UnavailableError: the address cannot be bound.
    """
    server = Server(pipeline, host=host, port=port)
    address = await server.start()
    print(f"refdraft is serving {pipeline.model_info().name} on {address}", flush=True)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await stopping.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    logger.info("stopping: running answers have %g s to finish", DRAIN_S)
    await server.stop()


def _cannot_listen(host: str, port: int, error: Exception) -> UnavailableError:
    reason = getattr(error, "strerror", None) or error
    return UnavailableError(f"cannot listen on {host}, port {port}: {reason}; choose another --port or --host")


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
