"""The gRPC servicers: convert, call the pipeline, convert back."""

# ruff: noqa: N802, D102 -- the methods are named and described in protos/refdraft/v1/refdraft.proto

import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Protocol

import grpc

from refdraft.errors import RefdraftError
from refdraft.service import convert
from refdraft.service.status import status_of
from refdraft.service.types import (
    Completion,
    Delta,
    GenerateRequest,
    IndexInfo,
    ModelInfo,
    Passage,
    Retrieval,
)
from refdraft.v1 import refdraft_pb2 as pb
from refdraft.v1 import refdraft_pb2_grpc as pb_grpc

Context = grpc.aio.ServicerContext[Any, Any]

logger = logging.getLogger(__name__)


class Generator(Protocol):
    """What the service needs of a pipeline."""

    def stream(self, request: GenerateRequest) -> AsyncGenerator[Delta | Completion, None]:
        """Yield of each sample deltas, then one completion; closing it cancels the request."""
        ...

    async def generate_samples(self, request: GenerateRequest) -> tuple[Completion, ...]:
        """Return the whole answers, one for each sample, in their order."""
        ...

    async def retrieve(self, retrieval: Retrieval) -> tuple[Passage, ...]:
        """Return the best passages."""
        ...

    def model_info(self) -> ModelInfo:
        """Describe the target."""
        ...

    def index_infos(self) -> tuple[IndexInfo, ...]:
        """Describe the opened indexes."""
        ...


class GenerationServicer(pb_grpc.GenerationServiceServicer):
    """Answers prompts."""

    def __init__(self, pipeline: Generator) -> None:
        self._pipeline = pipeline

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        async with _Answering(context):
            completions = await self._pipeline.generate_samples(convert.request_from_proto(request))
            return pb.GenerateResponse(completions=map(convert.completion_to_proto, completions))

    # Writing, unlike yielding, raises here when the client has gone, so the pipeline's stream is closed at
    # once and not when some collector finds it.
    async def GenerateStream(  # type: ignore[override]
        self, request: pb.GenerateStreamRequest, context: Context
    ) -> None:
        async with _Answering(context):
            events = self._pipeline.stream(convert.request_from_proto(request.request))
            async with aclosing(events):
                async for event in events:
                    await context.write(convert.event_to_proto(event))

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        async with _Answering(context):
            return pb.GetModelResponse(model=convert.model_to_proto(self._pipeline.model_info()))


class RetrievalServicer(pb_grpc.RetrievalServiceServicer):
    """Searches indexes."""

    def __init__(self, pipeline: Generator) -> None:
        self._pipeline = pipeline

    async def Retrieve(self, request: pb.RetrieveRequest, context: Context) -> pb.RetrieveResponse:
        async with _Answering(context):
            passages = await self._pipeline.retrieve(convert.retrieval_from_proto(request.retrieval))
            return pb.RetrieveResponse(passages=convert.passages_to_proto(passages))

    async def ListIndexes(self, request: pb.ListIndexesRequest, context: Context) -> pb.ListIndexesResponse:
        async with _Answering(context):
            indexes = [convert.index_to_proto(index) for index in self._pipeline.index_infos()]
            return pb.ListIndexesResponse(indexes=indexes)


class _Answering:
    """Turns what is raised inside it into the call's status; a bug's details stay in the log."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RefdraftError):
            await self._context.abort(*status_of(error))
        # A client that left shows as CancelledError, which is no Exception and passes through.
        if isinstance(error, Exception) and not self._context.cancelled():
            request_id = uuid.uuid4().hex
            logger.error("request %s failed", request_id, exc_info=error)
            await self._context.abort(
                grpc.StatusCode.INTERNAL, f"internal error, request id {request_id}; see the server's log"
            )
