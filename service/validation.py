"""What a request may contain, types included, checked in one place for every door: library, CLI, client, server.

What depends on the target (ids inside the vocabulary, length against the context limit) is the pipeline's to
check.
"""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from numbers import Integral, Real
from typing import cast

from refdraft.errors import InvalidRequestError
from refdraft.service.types import (
    BOUNDED_SOURCES,
    PLACEMENTS,
    SEARCH_MODES,
    SOURCE_NAMES,
    STRUCTURE_KINDS,
    Drafting,
    GenerateRequest,
    Message,
    Reference,
    Retrieval,
    Sampling,
    Structure,
)

MAX_BAD_WORD_CHARACTERS = 256
MAX_BAD_WORDS = 256
MAX_DRAFT_TOKENS = 64
MAX_INT32 = 2**31 - 1  # what the wire holds; the library's own door refuses the same
MAX_LOGIT_BIAS = 100
MAX_LOGIT_BIASES = 1024
MAX_OUTPUT_PENALTY = 2  # presence and frequency, as OpenAI has it
MAX_PASSAGES = 100
MAX_REPETITION_PENALTY = 10
MAX_SAMPLES = 16
MAX_SEED = 2**63 - 1
MAX_SOURCE_WEIGHT = 16
MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 256
MAX_STRUCTURE_BYTES = 64 << 10  # of UTF-8
MAX_TEMPERATURE = 1e30  # every float type can be compared with it
MAX_TOP_LOGPROBS = 20


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
    if request.structure is not None:
        _validate_structure(request.structure, request.sampling)
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


def validate_single(request: GenerateRequest) -> None:
    """Check that a request asks for one sample, where one completion is returned.

    Raises:
        InvalidRequestError: it asks for several, and the message names the call that returns them.
    """
    _expect(request, GenerateRequest, "request")
    _expect(request.sampling, Sampling, "sampling")
    _expect_integer(request.sampling.n, 1, MAX_SAMPLES, "sampling.n")
    _require(request.sampling.n == 1, "one completion is returned here; call generate_samples for more", "sampling.n")


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
        _expect_ids(cast("Sequence[int]", prompt), "prompt")
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
    _expect_integer(sampling.min_tokens, 0, MAX_INT32, "sampling.min_tokens")
    _require(
        sampling.min_tokens <= sampling.max_tokens,
        f"must not exceed max_tokens, which is {sampling.max_tokens}, as {sampling.min_tokens} does",
        "sampling.min_tokens",
    )
    _expect_integer(sampling.n, 1, MAX_SAMPLES, "sampling.n")
    if sampling.seed is not None:
        _expect_integer(sampling.seed, 0, MAX_SEED, "sampling.seed")
    if sampling.logprobs is not None:
        _expect_integer(sampling.logprobs, 0, MAX_TOP_LOGPROBS, "sampling.logprobs")
    _validate_choice(sampling)
    _validate_words_and_ids(sampling)


def _validate_choice(sampling: Sampling) -> None:
    """The numbers that decide how a token is drawn."""
    _expect_number(sampling.temperature, 0, MAX_TEMPERATURE, "sampling.temperature")
    _expect_integer(sampling.top_k, 0, MAX_INT32, "sampling.top_k")
    _expect_positive(sampling.top_p, 1, "sampling.top_p")
    _expect_number(sampling.min_p, 0, 1, "sampling.min_p")
    _expect_positive(sampling.repetition_penalty, MAX_REPETITION_PENALTY, "sampling.repetition_penalty")
    for name in ("presence_penalty", "frequency_penalty"):
        _expect_number(getattr(sampling, name), -MAX_OUTPUT_PENALTY, MAX_OUTPUT_PENALTY, f"sampling.{name}")
    _expect(sampling.logit_bias, Mapping, "sampling.logit_bias")
    _expect_at_most(sampling.logit_bias, MAX_LOGIT_BIASES, "entries", "sampling.logit_bias")
    for token, bias in sampling.logit_bias.items():
        _expect_integer(token, 0, MAX_INT32, "sampling.logit_bias")
        _expect_number(bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS, f"sampling.logit_bias[{token}]")


def _validate_words_and_ids(sampling: Sampling) -> None:
    """What is banned, what is allowed, and what ends the output."""
    _expect_strings(sampling.bad_words, MAX_BAD_WORDS, "which bans nothing", "sampling.bad_words")
    for word in sampling.bad_words:
        _require(
            len(word) <= MAX_BAD_WORD_CHARACTERS,
            f"at most {MAX_BAD_WORD_CHARACTERS} characters each are accepted, not {len(word)}",
            "sampling.bad_words",
        )
    _expect_list(sampling.allowed_token_ids, "a list of token ids", "sampling.allowed_token_ids")
    _expect_ids(sampling.allowed_token_ids, "sampling.allowed_token_ids")
    _expect_strings(sampling.stop, MAX_STOP_STRINGS, "which every text contains", "sampling.stop")
    _expect_list(sampling.stop_token_ids, "a list of token ids", "sampling.stop_token_ids")
    _expect_at_most(sampling.stop_token_ids, MAX_STOP_TOKENS, "token ids", "sampling.stop_token_ids")
    _expect_ids(sampling.stop_token_ids, "sampling.stop_token_ids")
    _expect(sampling.ignore_eos, bool, "sampling.ignore_eos")


def _validate_structure(structure: Structure, sampling: Sampling) -> None:
    """Check a structure, and refuse what could leave no token to choose in the midst of an answer."""
    _expect(structure, Structure, "structure")
    _expect_name(structure.kind, STRUCTURE_KINDS, "structure.kind")
    size = _utf8_length(structure.source, "structure.source")
    _require(
        size <= MAX_STRUCTURE_BYTES, f"at most {MAX_STRUCTURE_BYTES} bytes are accepted, not {size}", "structure.source"
    )
    if structure.kind == "json_object":
        _require(size == 0, "json_object takes no source; for a schema choose json_schema", "structure.source")
    else:
        _require(size > 0, f"is empty; say which {structure.kind}", "structure.source")
    _require(
        not sampling.ignore_eos,
        "does not go with a structure: once that is complete, nothing but an end-of-sequence token may come",
        "sampling.ignore_eos",
    )
    _require(
        sampling.min_tokens == 0,
        "does not go with a structure: one that is complete earlier could neither end nor go on",
        "sampling.min_tokens",
    )
    _require(
        not sampling.allowed_token_ids,
        "does not go with a structure: where none of them fits it, no token would be left",
        "sampling.allowed_token_ids",
    )


def _validate_drafting(drafting: Drafting) -> None:
    _expect(drafting, Drafting, "drafting")
    _expect(drafting.enabled, bool, "drafting.enabled")
    _expect_integer(drafting.max_draft_tokens, 0, MAX_DRAFT_TOKENS, "drafting.max_draft_tokens")
    _expect_list(drafting.sources, "a list of names", "drafting.sources")
    for source in drafting.sources:
        _expect_name(source, SOURCE_NAMES, "drafting.sources")
    _utf8_length(drafting.corpus, "drafting.corpus")
    _expect(drafting.weights, Mapping, "drafting.weights")
    for source, weight in drafting.weights.items():
        _expect_name(source, SOURCE_NAMES, "drafting.weights")
        _expect_number(weight, 1 / MAX_SOURCE_WEIGHT, MAX_SOURCE_WEIGHT, f"drafting.weights[{source}]")
    _expect(drafting.limits, Mapping, "drafting.limits")
    for source, limit in drafting.limits.items():
        _expect_name(source, BOUNDED_SOURCES, "drafting.limits")
        _expect_integer(limit, 0, MAX_INT32, f"drafting.limits[{source}]")


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


def _expect_at_most(values: Sized, most: int, what: str, field: str) -> None:
    _require(len(values) <= most, f"at most {most} {what} are accepted, not {len(values)}", field)


def _expect_strings(values: Sequence[str], most: int, why_not_empty: str, field: str) -> None:
    _expect_list(values, "a list of strings", field)
    _expect_at_most(values, most, "strings", field)
    for value in values:
        _require(_utf8_length(value, field) > 0, f"holds an empty string, {why_not_empty}", field)


def _expect_ids(values: Sequence[int], field: str) -> None:
    for position, token in enumerate(values):
        if type(token) is not int or not 0 <= token <= MAX_INT32:  # a call for each would cost 0.3 s in 100,000
            _expect_integer(token, 0, MAX_INT32, f"{field}[{position}]")


def _expect_number(value: float, low: float, high: float, field: str) -> None:
    _expect_real(value, field)
    # NaN compares false with everything, so it is refused here too, and below.
    _require(low <= value <= high, f"must be in [{low:g}, {high:g}], not {value}", field)


def _expect_positive(value: float, high: float, field: str) -> None:
    _expect_real(value, field)
    _require(0 < value <= high, f"must be in (0, {high:g}], not {value}", field)


def _expect_real(value: object, field: str) -> None:
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
