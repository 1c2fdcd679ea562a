"""Structured output: grammars that a caller sends, as masks over the target's tokens.

The grammars are llguidance's. Its masks say, by bytes alone, after which tokens the output can still be completed;
which of several tokenisations of a text comes is left to the target. Written for llguidance 1.9.

A grammar is hostile input. Its source is small, llguidance's own limits bound each step, and what these limits do
not cover (deep recursion, huge divisors) is bounded here.
"""

import contextlib
import functools
import json
import math
import re
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from decimal import Decimal

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from numpy.typing import NDArray

from refdraft.decoder.constraint import Constraint
from refdraft.errors import InvalidRequestError, PreconditionError
from refdraft.retriever.tokenizer import Tokenizer

MAX_DIVISOR_COST = 50_000  # of `multipleOf`: divisors times the least common multiple of their digits; 0.6 s
# Between two tokens of JSON: a blank, or a line break with indentation. Models that may write any whitespace
# sometimes write nothing else.
JSON_WHITESPACE = r"[ \t]|\r?\n[ \t]{0,40}"

_LIMITS = LLParserLimits(
    initial_lexer_fuel=250_000,
    max_items_in_row=500,  # 60 ms a step at worst; a hundred alternative objects fit into 200
    max_lexer_states=50_000,  # 1 to 2 kB each
    verbose_errors=False,
)
# The compiler recurses along chains of rules, and a stack that overflows ends the process. The longest chain that
# MAX_STRUCTURE_BYTES (validation.py) can hold fits into an eighth of this; what is not touched takes no memory.
_STACK_BYTES = 256 * 2**20
_stack_size_lock = threading.Lock()

_DEAD_END = "the grammar leaves no token that could come next"
_REASON_LENGTH = 200  # characters
_LIMIT = re.compile(r"fuel|limit|too (?:many|big|large|deep)|; max is")  # in what llguidance says
_OPTIONS = '\n%llguidance {"no_forcing": true}'
_LARK_TOKENS = re.compile(
    r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*'  # strings, expressions, comments: passed over
    r"|(?P<special><[^>\n]*>)|\b(?P<attribute>stop|max_tokens|temperature)\s*="
)


class Structures:
    """Compiles grammars for one target. Safe in any thread.

    Args:
        tokenizer: the target's.
        vocabulary_size: entries of a row of the target's logits; the tokenizer may know more ids or fewer.
        eos_ids: the tokens that end an output of the target.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int, eos_ids: frozenset[int]) -> None:
        self._tokenizer, self._vocabulary_size = tokenizer, vocabulary_size
        self._eos_ids = frozenset(token for token in eos_ids if token < vocabulary_size)
        self._lock = threading.Lock()
        self._vocabulary: _Vocabulary | None = None

    def compile(self, kind: str, source: str) -> Constraint:
        """A constraint for one output; every call gives a new one with its own state.

        Args:
            kind: "json_schema", "json_object", "regex" or "lark".
            source: the schema as JSON text, the expression that the whole output matches (Rust's syntax, no
                lookaround), or the grammar in llguidance's dialect of Lark; unused for "json_object". A schema's
                own "x-guidance" replaces `JSON_WHITESPACE`, which is not used for a "%json" of Lark either.

        Raises:
            InvalidRequestError: the grammar is wrong, asks for what is not supported, or costs too much.
            PreconditionError: the target has no end-of-sequence token, or a tokenizer that llguidance cannot read.
        """
        if not self._eos_ids:
            raise PreconditionError("the target has no end-of-sequence token, which structured output ends with")
        grammar = _grammar(kind, source)
        with self._lock:
            if self._vocabulary is None:  # 0.3 s for 49,000 tokens
                self._vocabulary = _Vocabulary(self._tokenizer, self._vocabulary_size, self._eos_ids)
        return _GrammarConstraint(grammar, self._vocabulary)


class _Vocabulary:
    """The target's tokens as llguidance sees them, and which of them are text."""

    def __init__(self, tokenizer: Tokenizer, size: int, eos_ids: frozenset[int]) -> None:
        self.size, self.eos_ids = size, sorted(eos_ids)
        known = tokenizer.vocabulary_size
        try:
            # Its own notion of an end is not used: whether an output may end is asked of the matcher.
            self.view = LLTokenizer(tokenizer.backend.to_str(), n_vocab=known)
        except ValueError as error:
            raise PreconditionError(f"structured output cannot use the target's tokenizer: {error}") from error
        self._text = np.zeros(size, np.bool_)
        for token in range(min(known, size)):
            self._text[token] = not self.view.is_special_token(token)
        self._text[self.eos_ids] = False

    def is_text(self, token: int) -> bool:
        return 0 <= token < self.size and bool(self._text[token])

    def mask(self, matcher: LLMatcher) -> NDArray[np.bool_]:
        """The text tokens that a matcher allows, bool [vocabulary]."""
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = self._text.copy()
        known = np.unpackbits(bits, bitorder="little", count=min(self.size, 8 * len(bits)))
        allowed[: len(known)] &= known.astype(np.bool_)
        return allowed


class _GrammarConstraint:
    """One output's place in a grammar.

    llguidance never raises: a matcher that fails goes on with a mask that allows the end alone, so each of its
    answers is checked. What a matcher has looked at counts towards its limits; drafts are looked at by a second
    matcher, so that an output meets the same limits with and without them.
    """

    def __init__(self, grammar: str, vocabulary: _Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._matcher, self._scout = (_compile(grammar, vocabulary.view) for _ in range(2))
        self._ahead: list[int] = []  # taken by the matcher, not by the scout yet
        self._ended = False
        self.allowed()  # a grammar that no output matches is refused right away

    def allowed(self) -> NDArray[np.bool_]:
        """The tokens that may come next, bool [vocabulary]; none once the output has ended.

        Raises:
            InvalidRequestError: no token is left, or the grammar costs more than its limits.
        """
        if self._ended:
            return np.zeros(self._vocabulary.size, np.bool_)
        allowed = self._vocabulary.mask(self._matcher)
        allowed[self._vocabulary.eos_ids] = self._matcher.is_accepting()
        self._check()
        if not allowed.any():
            raise InvalidRequestError(_DEAD_END, field="structure")
        return allowed

    def accepts(self, tokens: Sequence[int]) -> int:
        """How many of these tokens may come next; fewer once the scout has met a limit."""
        if self._ended or not self._catch_up():
            return 0
        vocabulary = self._vocabulary
        size = next((i for i, token in enumerate(tokens) if not vocabulary.is_text(token)), len(tokens))
        text = list(tokens[:size])
        count = 0 if self._scout.is_stopped() else self._scout.validate_tokens(text)
        if count < size or size == len(tokens) or tokens[size] not in vocabulary.eos_ids:
            return count
        scout = self._scout.deep_copy()
        return count + (scout.try_consume_tokens(text) == size and scout.is_accepting())

    def advance(self, token: int) -> None:
        """Take the token that was committed.

        Raises:
            ValueError: the grammar forbids it.
            InvalidRequestError: the grammar costs more than its limits.
        """
        taken = self._take(token)
        self._check()
        if not taken:
            raise ValueError(f"the grammar forbids token {token} here")

    def _take(self, token: int) -> bool:
        if self._ended:
            return False
        if token in self._vocabulary.eos_ids:
            self._ended = self._matcher.is_accepting()
            return self._ended
        if self._matcher.is_stopped() or not self._vocabulary.is_text(token):
            return False
        self._ahead.append(token)
        taken = self._matcher.try_consume_tokens([token])
        del self._ahead[len(self._ahead) - 1 + taken :]
        return taken == 1

    def _catch_up(self) -> bool:
        """Bring the scout to the matcher's place; False where it could not follow."""
        taken = self._scout.try_consume_tokens(self._ahead)
        del self._ahead[:taken]
        return not self._ahead and not self._scout.is_error()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InvalidRequestError(_reason(self._matcher.get_error()), field="structure")


def _compile(grammar: str, vocabulary: LLTokenizer) -> LLMatcher:
    """Run llguidance's compiler in a thread with a large stack."""
    result: Future[LLMatcher] = Future()
    run = functools.partial(LLMatcher, vocabulary, grammar, log_level=0, limits=_LIMITS)
    thread = threading.Thread(target=lambda: result.set_result(run()))
    with _stack_size_lock:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    matcher = result.result()
    if matcher.is_error():
        raise InvalidRequestError(_reason(matcher.get_error()), field="structure.source")
    return matcher


def _grammar(kind: str, source: str) -> str:
    """What llguidance compiles: its JSON form of a Lark grammar.

    Raises:
        InvalidRequestError: the source is wrong, or holds what is not supported.
    """
    match kind:
        case "json_schema":
            lark = _json_lark(_parse_schema(source))
        case "json_object":
            lark = _json_lark({"type": "object"})
        case "regex":
            if (len(source) - len(source.rstrip("\\"))) % 2:  # llguidance would drop it
                raise InvalidRequestError("ends in a backslash that escapes nothing", field="structure.source")
            lark = f"start: /{regex_to_lark(source)}/"
        case "lark":
            _check_lark(source)
            lark = source
        case _:
            raise InvalidRequestError(f"{kind!r} is no kind of structure", field="structure.kind")
    return json.dumps({"grammars": [{"lark_grammar": lark + _OPTIONS}]})


def _parse_schema(source: str) -> dict[str, object]:
    try:
        schema = json.loads(source, parse_constant=_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"is not JSON: {error}", field="structure.source") from None
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise InvalidRequestError("is no JSON schema that an output can match", field="structure.source")
    return schema


def _number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def _json_lark(schema: dict[str, object]) -> str:
    _check_divisors(schema)
    schema = {"x-guidance": {"whitespace_pattern": JSON_WHITESPACE}} | schema
    return f"start: %json {json.dumps(schema)}"


def _check_lark(source: str) -> None:
    """Refuse what would be ignored, or would let the output depart from the grammar."""
    for token in _LARK_TOKENS.finditer(source):
        if special := token["special"]:
            raise InvalidRequestError(f"the output cannot hold the special token {special}", field="structure.source")
        if attribute := token["attribute"]:
            raise InvalidRequestError(
                f"a rule's {attribute} is not supported; suffix and lazy are", field="structure.source"
            )
    schemas = []
    for found in re.finditer(r"%json\s*", source):
        # What is no JSON here is none for llguidance either.
        with contextlib.suppress(ValueError, RecursionError):
            schemas.append(json.JSONDecoder().raw_decode(source, found.end())[0])
    _check_divisors(schemas)


def _check_divisors(schema: object) -> None:
    """Refuse `multipleOf` where its automaton, one state a remainder, would take seconds to build."""
    divisors = [_digits(value) for value in _values(schema, "multipleOf")]
    if len(divisors) * math.lcm(*divisors) > MAX_DIVISOR_COST:
        raise InvalidRequestError(
            f"multipleOf costs too much: the number of divisors times the least common multiple of their significant"
            f" digits is more than {MAX_DIVISOR_COST}",
            field="structure.source",
        )


def _digits(number: int | float) -> int:
    """The significant digits as one number: 125 of 0.00125, and 5 of 5000."""
    _, digits, _ = Decimal(str(number)).normalize().as_tuple()
    return int("".join(map(str, digits)))


def _values(value: object, key: str) -> Iterator[int | float]:
    """The finite positive numbers that stand under a key, at any depth."""
    pending = [value]
    while pending:
        match pending.pop():
            case dict() as members:
                pending += members.values()
                number = members.get(key)
                if isinstance(number, int | float) and 0 < number < math.inf:
                    yield number
            case list() as items:
                pending += items


def _reason(message: str) -> str:
    """One line of what llguidance says, with the place in a Lark grammar that it points to."""
    if message.startswith("NoExtension"):
        return _DEAD_END
    lines = message.splitlines()
    said = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    for wrapper in ("(in regex): ", "failed to compile JSON schema: "):
        said = said.rpartition(wrapper)[2]
    said = re.sub(r"^(?:at )?(\d+)\((\d+)\): ", r"line \1, column \2: ", said)[:_REASON_LENGTH]
    return f"is too complex, simplify it: {said}" if _LIMIT.search(said) else said
