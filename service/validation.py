"""What a request may contain, types included, checked in one place for every door: library, CLI, client, server.

What depends on the target (ids inside the vocabulary, length against the context limit) is the pipeline's to
check.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import cast

from refdraft.errors import InvalidRequestError
from refdraft.service.types import (
    PLACEMENTS,
    SEARCH_MODES,
    SOURCE_NAMES,
    Drafting,
    GenerateRequest,
    Message,
    Reference,
    Retrieval,
    Sampling,
)

MAX_DRAFT_TOKENS = 64
MAX_INT32 = 2**31 - 1  # what the wire holds; the library's own door refuses the same
MAX_PASSAGES = 100
MAX_SEED = 2**63 - 1
MAX_STOP_STRINGS = 16
MAX_TEMPERATURE = 1e30  # every float type can be compared with it


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may ask of this server at most."""

    max_tokens: int = 65_536
    max_references: int = 10_000
    max_reference_bytes: int = 8 << 20  # of UTF-8, references and prediction together


# A client knows no server's limits, so it leaves them to the server.
NO_LIMITS = Limits(max_tokens=MAX_INT32, max_references=MAX_INT32, max_reference_bytes=MAX_INT32)


def validate(request: GenerateRequest, limits: Limits) -> None:
    """Check every value of a request.

    Raises:
        InvalidRequestError: its `field` names the first value that cannot be accepted.
    """
    _expect(request, GenerateRequest, "request")
    _validate_prompt(request)
    _validate_references(request, limits)
    _validate_sampling(request.sampling, limits)
    _validate_drafting(request.drafting)
    if request.retrieval is not None:
        validate_retrieval(request.retrieval)
        _require(
            request.retrieval.query is not None or searchable_text(request).strip() != "",
            "the prompt holds no text to search for; say what to search for",
            "retrieval.query",
        )


def validate_retrieval(retrieval: Retrieval, *, query_required: bool = False) -> None:
    """Check a retrieval, within a request or on its own (where no prompt can stand in for the query).

    Raises:
        InvalidRequestError: its `field` names the first value that cannot be accepted.
    """
    _expect(retrieval, Retrieval, "retrieval")
    _require(_utf8_length(retrieval.index, "retrieval.index") > 0, "name an index", "retrieval.index")
    _expect_integer(retrieval.top_k, 1, MAX_PASSAGES, "retrieval.top_k")
    if retrieval.mode is not None:
        _expect_name(retrieval.mode, SEARCH_MODES, "retrieval.mode")
    _expect_name(retrieval.placement, PLACEMENTS, "retrieval.placement")
    if retrieval.query is None:
        _require(not query_required, "say what to search for", "retrieval.query")
    else:
        _utf8_length(retrieval.query, "retrieval.query")
        _require(retrieval.query.strip() != "", "is empty", "retrieval.query")


def searchable_text(request: GenerateRequest) -> str:
    """What a retrieval without a query searches for: the prompt's text, or its last user turn; "" for token ids."""
    if isinstance(request.prompt, str):
        return request.prompt
    turns = (turn for turn in reversed(request.prompt) if isinstance(turn, Message))
    return next((turn.content for turn in turns if turn.role == "user"), "")


def _validate_prompt(request: GenerateRequest) -> None:
    prompt = request.prompt
    _expect(request.raw, bool, "raw")
    if isinstance(prompt, str):
        _require(_utf8_length(prompt, "prompt") > 0, "is empty", "prompt")
        return
    _expect_list(prompt, "text, or a list of messages or of token ids", "prompt")
    _require(len(prompt) > 0, "is empty", "prompt")
    _require(not request.raw, "is for text; a chat and token ids go without", "raw")
    if not isinstance(prompt[0], Message):
        for position, token in enumerate(cast("Sequence[int]", prompt)):
            if type(token) is not int or not 0 <= token <= MAX_INT32:  # a call for each would cost 0.3 s in 100,000
                _expect_integer(token, 0, MAX_INT32, f"prompt[{position}]")
        return
    for position, turn in enumerate(prompt):
        _expect(turn, Message, f"prompt[{position}]")
        if isinstance(turn, Message):
            _utf8_length(turn.role, f"prompt[{position}].role")
            _utf8_length(turn.content, f"prompt[{position}].content")


def _validate_references(request: GenerateRequest, limits: Limits) -> None:
    references = request.references
    _expect_list(references, "a list of references", "references")
    _require(
        len(references) <= limits.max_references,
        f"at most {limits.max_references} are accepted, not {len(references)}",
        "references",
    )
    total = _utf8_length(request.prediction, "prediction")
    for position, reference in enumerate(references):
        _expect(reference, Reference, f"references[{position}]")
        _utf8_length(reference.id, f"references[{position}].id")
        total += _utf8_length(reference.text, f"references[{position}].text")
    _require(
        total <= limits.max_reference_bytes,
        f"at most {limits.max_reference_bytes} bytes are accepted, prediction included, not {total}",
        "references",
    )


def _validate_sampling(sampling: Sampling, limits: Limits) -> None:
    _expect(sampling, Sampling, "sampling")
    _expect_integer(sampling.max_tokens, 1, limits.max_tokens, "sampling.max_tokens")
    _expect_number(sampling.temperature, "sampling.temperature")
    # NaN compares false with everything, so it is refused here too, and below.
    _require(
        0 <= sampling.temperature <= MAX_TEMPERATURE,
        f"must be in [0, {MAX_TEMPERATURE:g}], not {sampling.temperature}",
        "sampling.temperature",
    )
    _expect_integer(sampling.top_k, 0, MAX_INT32, "sampling.top_k")
    _expect_number(sampling.top_p, "sampling.top_p")
    _require(0 < sampling.top_p <= 1, f"must be in (0, 1], not {sampling.top_p}", "sampling.top_p")
    if sampling.seed is not None:
        _expect_integer(sampling.seed, 0, MAX_SEED, "sampling.seed")
    _expect_list(sampling.stop, "a list of strings", "sampling.stop")
    _require(
        len(sampling.stop) <= MAX_STOP_STRINGS,
        f"at most {MAX_STOP_STRINGS} strings are accepted, not {len(sampling.stop)}",
        "sampling.stop",
    )
    for stop in sampling.stop:
        _require(
            _utf8_length(stop, "sampling.stop") > 0,
            "holds an empty string, which every text contains",
            "sampling.stop",
        )


def _validate_drafting(drafting: Drafting) -> None:
    _expect(drafting, Drafting, "drafting")
    _expect(drafting.enabled, bool, "drafting.enabled")
    _expect_integer(drafting.max_draft_tokens, 0, MAX_DRAFT_TOKENS, "drafting.max_draft_tokens")
    _expect_list(drafting.sources, "a list of names", "drafting.sources")
    for source in drafting.sources:
        _expect_name(source, SOURCE_NAMES, "drafting.sources")


def _utf8_length(text: str, field: str) -> int:
    _expect(text, str, field)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"character {error.start} is a lone surrogate; decode the text as UTF-8", field=field
        ) from None


def _expect(value: object, kind: type, field: str) -> None:
    _require(isinstance(value, kind), f"must be of type {kind.__name__}, not {_type_name(value)}", field)


def _expect_list(value: object, what: str, field: str) -> None:
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    _require(is_list, f"must be {what}, not {_type_name(value)}", field)


def _expect_name(value: object, names: Sequence[str], field: str) -> None:
    _expect(value, str, field)
    _require(value in names, f"must be one of {', '.join(names)}, not {value!r}", field)


def _expect_number(value: object, field: str) -> None:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    _require(is_number, f"must be a number, not {_type_name(value)}", field)


def _expect_integer(value: int, low: int, high: int, field: str) -> None:
    """Python takes True for 1, a caller hardly ever; numpy's integers are as good as Python's."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    _require(is_integer, f"must be a whole number, not {_type_name(value)}", field)
    _require(low <= value <= high, f"must be in {low}..{high}, not {value}", field)


def _type_name(value: object) -> str:
    return type(value).__name__


def _require(condition: bool, message: str, field: str) -> None:
    if not condition:
        raise InvalidRequestError(message, field=field)
