"""Grammars: what random walks through their masks write, what drafts of them are worth, what is refused."""

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits

from refdraft.decoder.constraint import Constraint
from refdraft.errors import InvalidRequestError, PreconditionError
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.structure import Structures

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["ü", "no", None]}, "maxItems": 3},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
SUM = 'start: term ("+" term)*\nterm: NUMBER | "(" start ")"\nNUMBER: /[0-9]{1,3}/'
TEXTS = {  # of each kind, one that its grammar allows
    ("json_schema", json.dumps(PERSON)): '{"name": "Bü\\n😀", "age": 42, "tags": ["ü", null]}',
    ("json_object", ""): '{"a": {"é😀": [1.5, true, "x"]},\n  "b": {}}',
    ("regex", r"(yes|no), [a-zé😀]{2,6}(/[0-9])?"): "yes, café/7",
    ("lark", SUM): "1+(22+333)+4",
}


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer: "PreTrainedTokenizerFast") -> Tokenizer:
    return Tokenizer(tiny_tokenizer.backend_tokenizer)


def token_id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.backend.token_to_id(token)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def eos(tokenizer: Tokenizer) -> frozenset[int]:
    return frozenset(token_id(tokenizer, name) for name in ("<|im_end|>", "<|endoftext|>"))


@pytest.fixture(scope="module")
def structures(tokenizer: Tokenizer, eos: frozenset[int]) -> Structures:
    return Structures(tokenizer, tokenizer.vocabulary_size + 7, eos)  # seven rows of padding


def walk(constraint: Constraint, eos: frozenset[int], seed: int, limit: int = 400) -> list[int] | None:
    """Tokens chosen uniformly among those allowed, without the end; None where no end came."""
    rng, tokens = np.random.default_rng(seed), list[int]()
    while len(tokens) < limit:
        token = int(rng.choice(np.flatnonzero(constraint.allowed())))
        constraint.advance(token)
        if token in eos:
            return tokens
        tokens.append(token)
    return None


def is_person(text: str) -> bool:
    value = json.loads(text)
    return (
        {"name", "tags"} <= value.keys() <= {"name", "age", "tags"}
        and len(value["name"]) <= 5
        and ("age" not in value or (type(value["age"]) is int and 0 <= value["age"] <= 130))
        and len(value["tags"]) <= 3
        and all(tag in ("ü", "no", None) for tag in value["tags"])
    )


def is_sum(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9+()]+", text)) and isinstance(eval(re.sub(r"\b0+(?=\d)", "", text)), int)


CHECKS: list[tuple[str, str, Callable[[str], Any]]] = [
    ("json_schema", json.dumps(PERSON), is_person),
    ("json_object", "", lambda text: isinstance(json.loads(text), dict)),
    ("regex", r"(yes|no), [a-zé😀]{2,6}(/[0-9])?", re.compile(r"(yes|no), [a-zé😀]{2,6}(/[0-9])?").fullmatch),
    ("regex", "^a|b/\n$", re.compile("a|b/\n").fullmatch),
    ("lark", SUM, is_sum),
]


@pytest.mark.parametrize(("kind", "source", "matches"), CHECKS)
def test_whatever_is_chosen_among_allowed_tokens_matches_at_the_end(
    kind: str,
    source: str,
    matches: Callable[[str], Any],
    structures: Structures,
    tokenizer: Tokenizer,
    eos: frozenset[int],
) -> None:
    ended = 0
    for seed in range(25):
        tokens = walk(structures.compile(kind, source), eos, seed)
        if tokens is not None:
            ended += 1
            assert matches(tokenizer.decode(tokens)), tokenizer.decode(tokens)
    assert ended >= 10


def test_the_default_model_keeps_to_a_schema(default_model: Path) -> None:
    tokenizer = Tokenizer.load(default_model)
    eos = frozenset({token_id(tokenizer, "<|im_end|>")})
    structures = Structures(tokenizer, tokenizer.vocabulary_size, eos)
    for seed in range(15):
        tokens = walk(structures.compile("json_schema", json.dumps(PERSON)), eos, seed)
        assert tokens is not None
        assert is_person(tokenizer.decode(tokens))


@pytest.mark.parametrize(("grammar", "text"), TEXTS.items())
def test_a_text_is_allowed_in_any_tokenisation(
    grammar: tuple[str, str], text: str, structures: Structures, tokenizer: Tokenizer, eos: frozenset[int]
) -> None:
    alphabet = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    mapped = "".join(piece for piece, _ in alphabet.pre_tokenize_str(text))
    bytewise = [token_id(tokenizer, character) for character in mapped]
    for tokens in (bytewise, [int(token) for token in tokenizer.encode(text)]):
        constraint = structures.compile(*grammar)
        assert constraint.accepts([*tokens, min(eos), min(eos)]) == len(tokens) + 1
        for token in tokens:
            assert constraint.allowed()[token]
            constraint.advance(token)
        assert constraint.allowed()[list(eos)].all()


@settings(deadline=None, derandomize=True, max_examples=150)
@given(data=st.data())
def test_accepts_counts_the_tokens_that_could_be_taken_one_by_one_and_changes_nothing(
    data: st.DataObject, structures: Structures, tokenizer: Tokenizer, eos: frozenset[int]
) -> None:
    (grammar, text) = data.draw(st.sampled_from(sorted(TEXTS.items())))
    asked, stepped = structures.compile(*grammar), structures.compile(*grammar)
    tokens = [*(int(token) for token in tokenizer.encode(text)), min(eos)]
    start = data.draw(st.integers(0, len(tokens) - 1))
    for token in tokens[:start]:
        asked.advance(token)
        stepped.advance(token)
    draft = tokens[start:]
    if data.draw(st.booleans()):
        draft[data.draw(st.integers(0, len(draft) - 1))] = data.draw(st.integers(0, tokenizer.vocabulary_size + 6))
    draft += data.draw(st.lists(st.integers(0, tokenizer.vocabulary_size + 6), max_size=2))
    before = asked.allowed()
    count = asked.accepts(draft)
    assert np.array_equal(before, asked.allowed())
    assert count == asked.accepts(draft) == steps(stepped, draft)


def steps(constraint: Constraint, tokens: Sequence[int]) -> int:
    for count, token in enumerate(tokens):
        if not constraint.allowed()[token]:
            with pytest.raises(ValueError, match="forbids"):
                constraint.advance(token)
            return count
        constraint.advance(token)
    return len(tokens)


def test_a_forbidden_token_is_refused_and_changes_nothing(structures: Structures, tokenizer: Tokenizer) -> None:
    constraint = structures.compile("regex", "ab")
    before = constraint.allowed()
    for token in (*tokenizer.encode("b"), token_id(tokenizer, "<|im_end|>"), 10**6, -1):
        with pytest.raises(ValueError, match="forbids"):
            constraint.advance(int(token))
        assert constraint.accepts([int(token)]) == 0
    assert np.array_equal(constraint.allowed(), before)


def test_a_grammar_that_can_only_end_allows_every_end_and_nothing_else(
    structures: Structures, tokenizer: Tokenizer, eos: frozenset[int]
) -> None:
    for end in eos:
        constraint = structures.compile("json_schema", '{"const": 7}')
        constraint.advance(int(tokenizer.encode("7")[0]))
        assert set(np.flatnonzero(constraint.allowed())) == eos
        constraint.advance(end)
        assert not constraint.allowed().any()
        assert constraint.accepts([end]) == 0
        with pytest.raises(ValueError, match="forbids"):
            constraint.advance(end)


def test_a_grammar_that_may_end_allows_the_end_among_others(
    structures: Structures, tokenizer: Tokenizer, eos: frozenset[int]
) -> None:
    constraint = structures.compile("regex", "a*")
    allowed = set(np.flatnonzero(constraint.allowed()))
    assert eos < allowed
    assert int(tokenizer.encode("a")[0]) in allowed


def test_only_text_the_target_knows_is_allowed(tokenizer: Tokenizer, eos: frozenset[int]) -> None:
    known = tokenizer.vocabulary_size
    control = token_id(tokenizer, "<|im_start|>")
    for size in (known + 9, known, known - 100):
        constraint = Structures(tokenizer, size, eos).compile("regex", r"(?s:.)*")
        allowed = constraint.allowed()
        assert allowed.shape == (size,)
        assert not allowed[control]
        assert not allowed[known:].any()
        assert allowed.sum() > 250
        assert constraint.accepts([control]) == constraint.accepts([size]) == 0


def test_an_end_beyond_the_tokenizer_is_an_end(tokenizer: Tokenizer) -> None:
    known = tokenizer.vocabulary_size
    constraint = Structures(tokenizer, known + 5, frozenset({known + 3})).compile("regex", "")
    assert list(np.flatnonzero(constraint.allowed())) == [known + 3]


def test_a_target_without_an_end_is_refused(tokenizer: Tokenizer) -> None:
    for eos in (frozenset[int](), frozenset({10**6})):
        with pytest.raises(PreconditionError, match="end-of-sequence"):
            Structures(tokenizer, tokenizer.vocabulary_size, eos).compile("json_object", "")


def test_constraints_of_one_grammar_share_no_state(structures: Structures, tokenizer: Tokenizer) -> None:
    first, second = (structures.compile("regex", "ab*") for _ in range(2))
    a, b = (int(tokenizer.encode(letter)[0]) for letter in "ab")
    first.advance(a)
    assert first.allowed()[b]
    assert not second.allowed()[b]
    assert (first.accepts([b, b]), second.accepts([b, b]), second.accepts([a, b])) == (2, 0, 2)


def test_many_threads_may_compile_and_walk(tokenizer: Tokenizer, eos: frozenset[int]) -> None:
    structures = Structures(tokenizer, tokenizer.vocabulary_size, eos)  # its view of the tokens is not built yet

    def run(seed: int) -> list[int] | None:
        return walk(structures.compile("json_schema", json.dumps(PERSON)), eos, seed % 4)

    with ThreadPoolExecutor(8) as threads:
        walks = list(threads.map(run, range(16)))
    assert walks[:4] * 4 == walks


def test_whitespace_in_json_is_that_of_people_and_never_a_stream(structures: Structures, tokenizer: Tokenizer) -> None:
    def whole(text: str, source: str = '{"type": "object"}') -> bool:
        tokens = [int(token) for token in tokenizer.encode(text)]
        return structures.compile("json_schema", source).accepts(tokens) == len(tokens)

    value = {"a": [1, {"b": "c d"}], "e": None}
    for indent in (None, 0, 2, 4, "\t"):
        assert whole(json.dumps(value, indent=indent))
    assert whole(json.dumps(value, separators=(",", ":")))
    assert not whole('{   "a": 1}')
    assert not whole('{\n\n"a": 1}')
    assert not whole(' {"a": 1}')
    assert not whole('{"a": 1} ')
    assert not whole('{"a": 1}', '{"type": "object", "x-guidance": {"whitespace_flexible": false}}')


BAD = [
    ("json_schema", "{", "not JSON"),
    ("json_schema", "[" * 20_000, "not JSON"),
    ("json_schema", '{"minimum": NaN}', "NaN"),
    ("json_schema", '{}}], "max_tokens": 1, "grammars": [{"json_schema": {}', "not JSON"),
    ("json_schema", "3", "no JSON schema"),
    ("json_schema", "false", "no JSON schema"),
    ("json_schema", '{"type": "text"}', "Invalid type: text"),
    ("json_schema", '{"not": {}}', "not"),
    ("json_schema", '{"enum": []}', "Unsatisfiable"),
    ("json_schema", '{"$ref": "#"}', "leaves no token"),
    ("json_schema", '{"$ref": "http://example.com/"}', "example.com"),
    ("json_schema", '{"type": "integer", "multipleOf": 4999999}', "multipleOf"),
    ("json_schema", '{"allOf": [{"multipleOf": 997}, {"multipleOf": 0.991}]}', "multipleOf"),
    ("json_schema", '{"minimum": 1e999}', "1e999"),
    ("regex", "([", "unclosed character class"),
    ("regex", "a(?=b)", "look-around"),
    ("regex", "a^b", "lookaround"),
    ("regex", "a\\", "backslash"),
    ("lark", "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(60)) + 'T60: "a"', "too complex"),
    ("lark", "", "no start rule"),
    ("lark", 'start: "a" b\nb: c', 'line 2, column 4: unknown name: "c"'),
    ("lark", '{"grammars": [{"json_schema": {"multipleOf": 4999999}}]}', "line 1"),
    ("lark", 'start: %json {"multipleOf": 4999999}', "multipleOf"),
    ("lark", 'start: %json {"multiple\\u004ff": 4999999}', "multipleOf"),
    ("lark", 'start: %json {"multipleOf": 997} %json {"multipleOf": 991}', "multipleOf"),
    ("lark", 'start: "a" <|im_start|>', r"special token <\|im_start\|>"),
    ("lark", "start: <[1-3]>", "special token"),
    ("lark", 'start: a "b"\na[stop="c"]: /.*/', "stop"),
    ("lark", "start: a\na[max_tokens = 3]: /.*/", "max_tokens"),
    ("lark", "start: a\na[lazy, temperature=0.3]: /.*/", "temperature"),
    ("lark", "start: A\nA: /[a-z]+/ & /[0-9]+/", "leaves no token"),
    ("lark", 'start: start "a"', "leaves no token"),
    ("lark", "start: " + "(" * 20_000, "nested"),
]


@pytest.mark.parametrize(("kind", "source", "said"), BAD)
def test_a_bad_grammar_is_refused_in_one_line(kind: str, source: str, said: str, structures: Structures) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        structures.compile(kind, source)
    assert caught.value.field.startswith("structure")
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 300


def test_common_divisors_are_allowed(structures: Structures, tokenizer: Tokenizer) -> None:
    source = (
        '{"type": "array", "items": {"anyOf": [{"multipleOf": 0.01}, {"multipleOf": 1000000}, {"multipleOf": 60}]}}'
    )
    for text, allowed in (("[0.25, 1.07, 3000000]", True), ("[0.001]", False)):
        tokens = tokenizer.encode(text).tolist()
        assert (structures.compile("json_schema", source).accepts(tokens) == len(tokens)) is allowed


def test_an_unknown_kind_is_refused(structures: Structures) -> None:
    with pytest.raises(InvalidRequestError, match="'yaml'") as caught:
        structures.compile("yaml", "")
    assert caught.value.field == "structure.kind"


def test_what_only_looks_like_an_unsupported_word_is_allowed(structures: Structures, tokenizer: Tokenizer) -> None:
    source = '// stop="x" <|im_start|>\nstart: "<|im_start|>" /<a> stop=/ # <b>\n'
    tokens = [token for letter in "<|im_start|><a> stop=" for token in tokenizer.encode(letter).tolist()]
    assert structures.compile("lark", source).accepts(tokens) == len(tokens)


@pytest.mark.parametrize(
    "source",
    [
        "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(5000)) + 'r5000: "a"',
        "start: T0\n" + "".join(f"T{i}: T{i + 1}\n" for i in range(5000)) + 'T5000: "a"',
    ],
)
def test_a_long_chain_of_rules_does_not_overflow_the_stack(
    source: str, structures: Structures, tokenizer: Tokenizer
) -> None:
    assert structures.compile("lark", source).accepts(tokenizer.encode("a").tolist()) == 1


def test_a_long_chain_of_references_does_not_overflow_the_stack(structures: Structures) -> None:
    chain = {f"a{i}": {"items": {"$ref": f"#/a{i + 1}"}} for i in range(1600)}
    constraint = structures.compile("json_schema", json.dumps({"$ref": "#/a0", **chain, "a1600": {}}))
    assert constraint.allowed().any()


def length_until_failure(constraint: Constraint, tokens: Sequence[int], drafted: int) -> int:
    """How many of the tokens are taken before the grammar fails, drafts of the tokens behind them being tried."""
    for length, token in enumerate(tokens):
        constraint.accepts(tokens[length : length + drafted])
        try:
            assert constraint.allowed()[token]
            constraint.advance(token)
        except InvalidRequestError:
            break
    with pytest.raises(InvalidRequestError, match="structure: is too complex"):  # and so it stays
        constraint.allowed()
    return length


def test_a_grammar_that_meets_its_limits_fails_aloud_and_alike_with_drafts(
    structures: Structures, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = LLParserLimits(max_lexer_states=3000, verbose_errors=False)
    monkeypatch.setattr("refdraft.service.structure._LIMITS", limits)
    rng = np.random.default_rng(0)
    text = " ".join(rng.choice(["a", "banana", "x", "alpha"], 1000))
    tokens = [int(token) for token in tokenizer.encode(text)]
    plain, drafted = (
        length_until_failure(structures.compile("regex", "(.*a.{20}){3}"), tokens, size) for size in (0, 1000)
    )
    assert plain == drafted > 0


def test_an_ambiguous_grammar_fails_before_it_gets_slow(structures: Structures, tokenizer: Tokenizer) -> None:
    a = int(tokenizer.encode("a")[0])
    constraint = structures.compile("lark", 'start: s\ns: s s | s s s | "a" | ""')
    assert length_until_failure(constraint, [a] * 1000, 0) > 10
