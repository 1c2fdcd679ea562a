"""Errors on the wire: a RefdraftError becomes a gRPC status with details, and a status becomes an error again.

The code's name is the error's own `status`. Details travel as a google.rpc.Status in trailing metadata.
"""

from collections.abc import Iterator
from itertools import accumulate, takewhile
from typing import TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status

from refdraft.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PreconditionError,
    RefdraftError,
    UnavailableError,
)

DETAILS_KEY = "grpc-status-details-bin"
# A status travels in HTTP/2 headers, which peers limit to 8 KiB in all; the message is in them up to three times.
MAX_MESSAGE_BYTES = 1500  # as encoded for a header
_PLAIN = frozenset(map(chr, range(0x20, 0x7F))) - {"%"}  # one byte there; of all else each byte is written as %XX

_D = TypeVar("_D", bound=Message)

_ERRORS: dict[grpc.StatusCode, type[RefdraftError]] = {
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: PreconditionError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
}


def status_of(error: RefdraftError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return what `context.abort` takes: code, message and trailing metadata."""
    code = grpc.StatusCode[error.status]
    message = _shortened(str(error))
    status = Status(code=code.value[0], message=message)
    for detail in _details_of(error):
        status.details.add().Pack(detail)
    return code, message, ((DETAILS_KEY, status.SerializeToString()),)


def error_of(rpc: grpc.Call) -> RefdraftError:
    """Return the error that a failed call stands for, with the server's message."""
    code, message = rpc.code(), rpc.details() or ""
    details = Status()
    for key, value in rpc.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            details = Status.FromString(value)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        violation = _unpacked(details, BadRequest()).field_violations
        if violation:
            return InvalidRequestError(violation[0].description, field=violation[0].field)
        return InvalidRequestError(message)
    retry = _unpacked(details, RetryInfo())
    # Without RetryInfo it is gRPC's own complaint about a message's size, which no retry will cure.
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and retry.HasField("retry_delay"):
        return OverloadedError(message, retry_after_s=retry.retry_delay.ToTimedelta().total_seconds())
    return _ERRORS.get(code, RefdraftError)(message)


def _details_of(error: RefdraftError) -> Iterator[Message]:
    if isinstance(error, InvalidRequestError):
        violation = BadRequest.FieldViolation(field=error.field, description=_shortened(error.reason))
        yield BadRequest(field_violations=[violation])
    if isinstance(error, OverloadedError):
        delay = Duration()
        delay.FromMilliseconds(round(error.retry_after_s * 1000))
        yield RetryInfo(retry_delay=delay)


def _shortened(message: str) -> str:
    """Cut a message to what a header holds."""
    whole = message.encode(errors="replace").decode()
    sizes = accumulate(1 if character in _PLAIN else 3 * len(character.encode()) for character in whole)
    return whole[: sum(1 for _ in takewhile(lambda size: size <= MAX_MESSAGE_BYTES, sizes))]


def _unpacked(status: Status, detail: _D) -> _D:
    for packed in status.details:
        if packed.Unpack(detail):
            break
    return detail
