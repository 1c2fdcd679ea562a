"""What a request may contain, checked in one place for every door: library, CLI and gRPC.

What depends on the target (ids inside the vocabulary, length against the context limit) is the pipeline's to
check.
"""

import math
from dataclasses import dataclass

from refdraft.errors import InvalidRequestError
from refdraft.service.types import (
    PLACEMENTS,
    SEARCH_MODES,
    SOURCE_NAMES,
    Drafting,
    GenerateRequest,
    Message,
    Retrieval,
    Sampling,
)

MAX_DRAFT_TOKENS = 64
MAX_PASSAGES = 100
MAX_SEED = 2**63 - 1
MAX_STOP_STRINGS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may ask of this server at most."""

    max_tokens: int = 65_536
    max_references: int = 10_000
    max_reference_bytes: int = 8 << 20  # of UTF-8, references and prediction together


def validate(request: GenerateRequest, limits: Limits) -> None:
    """Check every value of a request.

    Raises:
        InvalidRequestError: its `field` names the first value that cannot be accepted.
    """
    _validate_prompt(request)
    _validate_references(request, limits)
    _validate_sampling(request.sampling, limits)
    _validate_drafting(request.drafting)
    if request.retrieval is not None:
        validate_retrieval(request.retrieval)


def validate_retrieval(retrieval: Retrieval, *, query_required: bool = False) -> None:
    """Check a retrieval, within a request or on its own (where no prompt can stand in for the query).

    Raises:
        InvalidRequestError: its `field` names the first value that cannot be accepted.
    """
    _require(retrieval.index != "", "name an index", "retrieval.index")
    _require(
        1 <= retrieval.top_k <= MAX_PASSAGES,
        f"must be in 1..{MAX_PASSAGES}, not {retrieval.top_k}",
        "retrieval.top_k",
    )
    _require(
        retrieval.mode is None or retrieval.mode in SEARCH_MODES,
        f"must be one of {', '.join(SEARCH_MODES)}, not {retrieval.mode!r}",
        "retrieval.mode",
    )
    _require(
        retrieval.placement in PLACEMENTS,
        f"must be one of {', '.join(PLACEMENTS)}, not {retrieval.placement!r}",
        "retrieval.placement",
    )
    if retrieval.query is None:
        _require(not query_required, "say what to search for", "retrieval.query")
    else:
        _require(retrieval.query.strip() != "", "is empty", "retrieval.query")
        _utf8_length(retrieval.query, "retrieval.query")


def _validate_prompt(request: GenerateRequest) -> None:
    prompt = request.prompt
    _require(len(prompt) > 0, "is empty", "prompt")
    _require(isinstance(prompt, str) or not request.raw, "is for text; a chat and token ids go without", "raw")
    if isinstance(prompt, str):
        _utf8_length(prompt, "prompt")
        return
    kind = Message if isinstance(prompt[0], Message) else int
    for turn in prompt:
        _require(isinstance(turn, kind), "mixes messages and token ids; send one kind", "prompt")
        if isinstance(turn, Message):
            _utf8_length(turn.role + turn.content, "prompt")
        elif turn < 0:
            raise InvalidRequestError(f"token id {turn} is negative", field="prompt")


def _validate_references(request: GenerateRequest, limits: Limits) -> None:
    count = len(request.references)
    _require(
        count <= limits.max_references,
        f"at most {limits.max_references} are accepted, not {count}",
        "references",
    )
    total = _utf8_length(request.prediction, "prediction")
    for reference in request.references:
        _utf8_length(reference.id, "references")
        total += _utf8_length(reference.text, "references")
    _require(
        total <= limits.max_reference_bytes,
        f"at most {limits.max_reference_bytes} bytes are accepted, prediction included, not {total}",
        "references",
    )


def _validate_sampling(sampling: Sampling, limits: Limits) -> None:
    _require(
        1 <= sampling.max_tokens <= limits.max_tokens,
        f"must be in 1..{limits.max_tokens}, not {sampling.max_tokens}",
        "sampling.max_tokens",
    )
    _require(
        math.isfinite(sampling.temperature) and sampling.temperature >= 0,
        f"must be 0 or a positive finite number, not {sampling.temperature}",
        "sampling.temperature",
    )
    _require(sampling.top_k >= 0, f"must not be negative, as {sampling.top_k} is", "sampling.top_k")
    # NaN compares false with everything, so it is refused here too.
    _require(0 < sampling.top_p <= 1, f"must be in (0, 1], not {sampling.top_p}", "sampling.top_p")
    _require(
        sampling.seed is None or 0 <= sampling.seed <= MAX_SEED,
        f"must be in 0..2^63-1, not {sampling.seed}",
        "sampling.seed",
    )
    _require(not isinstance(sampling.stop, str), "is one string; send a list of them", "sampling.stop")
    _require(
        len(sampling.stop) <= MAX_STOP_STRINGS,
        f"at most {MAX_STOP_STRINGS} strings are accepted, not {len(sampling.stop)}",
        "sampling.stop",
    )
    for stop in sampling.stop:
        _require(stop != "", "holds an empty string, which every text contains", "sampling.stop")


def _validate_drafting(drafting: Drafting) -> None:
    _require(
        0 <= drafting.max_draft_tokens <= MAX_DRAFT_TOKENS,
        f"must be in 0..{MAX_DRAFT_TOKENS}, not {drafting.max_draft_tokens}",
        "drafting.max_draft_tokens",
    )
    for source in drafting.sources:
        _require(
            source in SOURCE_NAMES,
            f"must be among {', '.join(SOURCE_NAMES)}, not {source!r}",
            "drafting.sources",
        )


def _utf8_length(text: str, field: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"character {error.start} is a lone surrogate; decode the text as UTF-8", field=field
        ) from None


def _require(condition: bool, message: str, field: str) -> None:
    if not condition:
        raise InvalidRequestError(message, field=field)
