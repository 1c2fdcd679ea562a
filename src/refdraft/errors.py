"""Every error refdraft raises on purpose, and the gRPC status each becomes.

A message is one line, says what to do about it, and may be shown to the caller. Anything else that is
raised is a bug: the server answers it with INTERNAL and logs the details under the request's id.
"""


class RefdraftError(Exception):
    """Base of all errors that refdraft raises on purpose."""

    status = "INTERNAL"


class InvalidRequestError(RefdraftError, ValueError):
    """The caller's own mistake; `field` names the offending field in the caller's terms, `reason` says the rest."""

    status = "INVALID_ARGUMENT"

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.reason = message


class NotFoundError(RefdraftError):
    """A named thing (an index, a model, a file) does not exist."""

    status = "NOT_FOUND"


class OverloadedError(RefdraftError):
    """No slot and no place in the queue; worth trying again after `retry_after_s` seconds."""

    status = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PreconditionError(RefdraftError):
    """The request is well formed but cannot hold in this state, such as an index of another tokenizer."""

    status = "FAILED_PRECONDITION"


class IndexFormatError(PreconditionError):
    """An index directory is truncated, altered, of another format version, or not an index."""


class SourceFormatError(PreconditionError):
    """A file offered to the index builder cannot be read as what it claims to be."""


class UnavailableError(RefdraftError):
    """The service cannot be reached, or is shutting down."""

    status = "UNAVAILABLE"


class DeadlineExceededError(RefdraftError):
    """The answer took longer than the caller's `timeout_s`."""

    status = "DEADLINE_EXCEEDED"
