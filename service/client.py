"""The light client: a refdraft server's answers as plain dataclasses, without torch or numpy."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from refdraft.errors import InvalidRequestError, PreconditionError, RefdraftError, UnavailableError
from refdraft.service import convert
from refdraft.service.channel import CLIENT_OPTIONS, DEFAULT_PORT, MESSAGE_LIMIT_BYTES
from refdraft.service.status import error_of
from refdraft.service.types import (
    Completion,
    Delta,
    GenerateRequest,
    IndexInfo,
    ModelInfo,
    Passage,
    Retrieval,
)
from refdraft.service.validation import NO_LIMITS, validate, validate_retrieval, validate_single
from refdraft.v1 import refdraft_pb2 as pb
from refdraft.v1 import refdraft_pb2_grpc as pb_grpc

_M = TypeVar("_M", bound=Message)

DEFAULT_ADDRESS = f"localhost:{DEFAULT_PORT}"


class Client:
    """A connection to a refdraft server; safe to share between threads.

    Every method raises the `RefdraftError` that the server raised, `UnavailableError` where no server
    answers, `DeadlineExceededError` after `timeout_s`, and `PreconditionError` once it is closed. A request that
    no server could accept is an `InvalidRequestError` and is not sent.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, timeout_s: float | None = None) -> None:
        """Connect at the first call.

        Args:
            address: HOST:PORT.
            timeout_s: for each call that gives none of its own, in seconds; None waits for ever.
        """
        self._address = address
        self._timeout_s = timeout_s
        self._closed = False
        self._channel = grpc.insecure_channel(address, options=CLIENT_OPTIONS)
        self._generation = pb_grpc.GenerationServiceStub(self._channel)
        self._retrieval = pb_grpc.RetrievalServiceStub(self._channel)

    def generate(self, request: GenerateRequest, *, timeout_s: float | None = None) -> Completion:
        """Return the whole answer to a request for one sample."""
        validate_single(request)
        return self.generate_samples(request, timeout_s=timeout_s)[0]

    def generate_samples(self, request: GenerateRequest, *, timeout_s: float | None = None) -> tuple[Completion, ...]:
        """Return the whole answers, one for each sample, in their order."""
        validate(request, NO_LIMITS)
        message = _sendable(convert.request_to_proto(request))
        with self._errors():
            response = self._generation.Generate(message, timeout=self._timeout(timeout_s))
        return tuple(convert.completion_from_proto(completion) for completion in response.completions)

    def stream(
        self, request: GenerateRequest, *, timeout_s: float | None = None
    ) -> Generator[Delta | Completion, None, None]:
        """Yield the answer as it is committed: of each sample deltas, then one completion. Samples interleave.

        Closing it cancels the request.
        """
        validate(request, NO_LIMITS)
        message = _sendable(pb.GenerateStreamRequest(request=convert.request_to_proto(request)))
        with self._errors():
            call = self._generation.GenerateStream(message, timeout=self._timeout(timeout_s))
            try:
                for event in call:
                    yield convert.event_from_proto(event)
            finally:
                call.cancel()

    def retrieve(self, retrieval: Retrieval, *, timeout_s: float | None = None) -> tuple[Passage, ...]:
        """Return the best passages for `retrieval.query`, best first."""
        validate_retrieval(retrieval, query_required=True)
        message = _sendable(pb.RetrieveRequest(retrieval=convert.retrieval_to_proto(retrieval)))
        with self._errors():
            response = self._retrieval.Retrieve(message, timeout=self._timeout(timeout_s))
        return convert.passages_from_proto(response.passages)

    def model(self, *, timeout_s: float | None = None) -> ModelInfo:
        """Describe the server's target."""
        with self._errors():
            response = self._generation.GetModel(pb.GetModelRequest(), timeout=self._timeout(timeout_s))
        return convert.model_from_proto(response.model)

    def indexes(self, *, timeout_s: float | None = None) -> tuple[IndexInfo, ...]:
        """Describe the indexes that requests may name."""
        with self._errors():
            response = self._retrieval.ListIndexes(pb.ListIndexesRequest(), timeout=self._timeout(timeout_s))
        return tuple(convert.index_from_proto(index) for index in response.indexes)

    def close(self) -> None:
        """Close the connection; calls in flight are cancelled."""
        self._closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _timeout(self, timeout_s: float | None) -> float | None:
        return self._timeout_s if timeout_s is None else timeout_s

    @contextmanager
    def _errors(self) -> Iterator[None]:
        if self._closed:
            raise PreconditionError("this client is closed; make a new one")
        try:
            yield
        except grpc.RpcError as rpc:
            if not isinstance(rpc, grpc.Call):
                raise RefdraftError(f"{self._address}: {rpc}") from rpc
            error = error_of(rpc)
            if isinstance(error, UnavailableError):
                error = UnavailableError(f"{self._address} does not answer: {error}")
            raise error from None


def _sendable(message: _M) -> _M:
    size = message.ByteSize()
    if size > MESSAGE_LIMIT_BYTES:
        raise InvalidRequestError(f"has {size} bytes; at most {MESSAGE_LIMIT_BYTES} can be sent", field="request")
    return message
