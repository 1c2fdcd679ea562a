"""What of a request reaches the decoder: every option, in the decoder's own terms."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from refdraft.decoder.constraint import Constraint
from refdraft.errors import InvalidRequestError
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.attribution import Document
from refdraft.service.job import DraftTexts, Job, JobBuilder
from refdraft.service.structure import Structures
from refdraft.service.types import Drafting, GenerateRequest, Sampling, Structure

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCABULARY = 400  # fewer than the tokenizer's 512
EOS = frozenset({2})


class Compiled:
    """Stands for what keeps one output's state."""

    def __init__(self, kind: str, source: str) -> None:
        self.kind, self.source = kind, source


class FakeStructures:
    """Compiles to a new object each time."""

    def compile(self, kind: str, source: str) -> Constraint:
        return cast("Constraint", Compiled(kind, source))


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer: "PreTrainedTokenizerFast") -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(tiny_tokenizer.backend_tokenizer.to_str()))


@pytest.fixture(scope="module")
def builder(tokenizer: Tokenizer) -> JobBuilder:
    return builder_for(tokenizer)


def builder_for(tokenizer: Tokenizer) -> JobBuilder:
    structures = cast("Structures", FakeStructures())
    return JobBuilder(tokenizer, structures, vocabulary_size=VOCABULARY, eos_ids=EOS)


def build(builder: JobBuilder, seed: int = 0, documents: Sequence[Document] = (), **values: Any) -> Job:
    sampling = Sampling(**{name: value for name, value in values.items() if name in Sampling.__dataclass_fields__})
    rest = {name: value for name, value in values.items() if name not in Sampling.__dataclass_fields__}
    return builder.build(
        GenerateRequest(prompt="a", sampling=sampling, **rest), [5, 6], DraftTexts(documents), (), seed=seed
    )


def test_each_option_arrives_under_the_decoders_name(builder: JobBuilder) -> None:
    (sample,) = build(
        builder,
        seed=9,
        max_tokens=11,
        min_tokens=3,
        temperature=0.5,
        top_k=4,
        top_p=0.75,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        logit_bias={7: -2.0},
        allowed_token_ids=[7, 8, 7],
        stop_token_ids=[8],
        logprobs=3,
    ).samples
    decode, options = sample.decode, sample.decode.sampling
    assert (decode.prompt, decode.max_tokens, decode.min_tokens, decode.top_logprobs) == ([5, 6], 11, 3, 3)
    assert decode.eos_ids == EOS
    assert decode.stop_ids == {8}
    assert decode.stop is None
    assert decode.constraint is None
    assert (options.temperature, options.top_k, options.top_p, options.min_p) == (0.5, 4, 0.75, 0.125)
    assert (options.repetition_penalty, options.presence_penalty, options.frequency_penalty) == (1.5, 0.25, -0.5)
    assert options.logit_bias == {7: -2.0}
    assert options.allowed_ids == frozenset({7, 8})
    assert options.bad_words == ()
    assert options.seed == 9


def test_the_defaults_ask_for_nothing(builder: JobBuilder) -> None:
    (sample,) = build(builder).samples
    assert sample.decode.sampling.allowed_ids is None, "no allowed token would mean that none is"
    assert sample.decode.top_logprobs is None
    assert sample.stops is None


def test_ignored_ends_are_tokens_like_others(builder: JobBuilder) -> None:
    assert build(builder, ignore_eos=True, stop_token_ids=[8]).samples[0].decode.eos_ids == frozenset()


def test_samples_differ_in_seed_and_state_alone(builder: JobBuilder, tokenizer: Tokenizer) -> None:
    documents = [Document.of_text(tokenizer, "abc", id="d")]
    structure = Structure(kind="regex", source="a*")
    job = build(builder, 2**63 - 2, documents, n=4, stop=["x"], structure=structure, prediction="abc")
    assert [sample.number for sample in job.samples] == [0, 1, 2, 3]
    assert [sample.decode.sampling.seed for sample in job.samples] == [2**63 - 2, 2**63 - 1, 0, 1]
    first = job.samples[0].decode
    for sample in job.samples:
        assert sample.decode.prompt is first.prompt, "it is prefilled once"
        assert sample.decode.documents is first.documents
        assert sample.decode.stop is sample.stops is not None
        assert isinstance(sample.decode.constraint, Compiled)
        assert (sample.decode.constraint.kind, sample.decode.constraint.source) == ("regex", "a*")
    assert len({id(sample.decode.constraint) for sample in job.samples}) == 4
    assert len({id(sample.stops) for sample in job.samples}) == 4


def test_sources_that_are_off_or_empty_are_left_out(builder: JobBuilder, tokenizer: Tokenizer) -> None:
    documents = [Document.of_text(tokenizer, "abc", id="d")]
    (sample,) = build(builder, documents=documents, prediction="def").samples
    assert list(sample.decode.documents) == ["references", "prediction"]
    assert (sample.decode.drafting.copy_prompt, sample.decode.drafting.copy_output) == (True, True)
    (sample,) = build(builder, documents=documents, drafting=Drafting(sources=("prediction", "output"))).samples
    assert sample.decode.documents == {}
    assert (sample.decode.drafting.copy_prompt, sample.decode.drafting.copy_output) == (False, True)
    (sample,) = build(builder, drafting=Drafting(enabled=False)).samples
    assert sample.decode.max_draft_tokens == 0


def test_history_comes_last_and_a_limit_keeps_the_first_tokens_of_a_source(
    builder: JobBuilder, tokenizer: Tokenizer
) -> None:
    documents = [Document.of_text(tokenizer, text, id=text) for text in ("abc abc abc", "def def")]
    first = list(documents[0].token_ids)
    history = [(5, 6, 7), (8, 9)]

    def sources(**limits: int) -> Mapping[str, Sequence[Sequence[int]]]:
        request = GenerateRequest(prompt="a", prediction="abc", drafting=Drafting(limits=cast("Any", limits)))
        (sample,) = builder.build(request, [5, 6], DraftTexts(documents, history), (), seed=0).samples
        return sample.decode.documents

    assert list(sources()) == ["references", "prediction", "history"]
    assert sources(history=4)["history"] == [(5, 6, 7), (8,)]
    assert sources(references=len(first) + 1)["references"] == [first, list(documents[1].token_ids)[:1]]
    assert "prediction" not in sources(prediction=0)


def test_bad_words_are_banned_with_and_without_a_space_before(tokenizer: Tokenizer) -> None:
    builder = JobBuilder(tokenizer, cast("Structures", FakeStructures()), vocabulary_size=512, eos_ids=EOS)

    @settings(deadline=None, max_examples=200, derandomize=True)
    @given(st.lists(st.text(st.sampled_from("ab é\n"), min_size=1, max_size=4), max_size=5))
    def check(words: list[str]) -> None:
        banned = build(builder, bad_words=words).samples[0].decode.sampling.bad_words
        assert len(set(map(tuple, banned))) == len(banned), "each once"
        texts = {tokenizer.decode(tokens) for tokens in banned}
        bare = {word.lstrip(" ") for word in words} - {""}
        spaces = {word for word in words if not word.strip(" ")}
        assert texts == bare | {f" {word}" for word in bare} | spaces

    check()


def test_a_bad_word_that_the_target_cannot_write_is_left_out(builder: JobBuilder, tokenizer: Tokenizer) -> None:
    unknown = tokenizer.decode([VOCABULARY + 1])
    assert max(tokenizer.encode(unknown)) > VOCABULARY
    assert max(map(max, build(builder, bad_words=["a", unknown]).samples[0].decode.sampling.bad_words)) < VOCABULARY


def test_a_bad_word_of_no_token_is_refused() -> None:
    bare = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    with pytest.raises(InvalidRequestError, match=r"sampling\.bad_words: 'b' is of no token"):
        build(builder_for(Tokenizer(bare)), bad_words=["b"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {3: 0.5, VOCABULARY: 1.0}),
        ("allowed_token_ids", [VOCABULARY]),
        ("stop_token_ids", [3, 2**31 - 1]),
    ],
)
def test_ids_beyond_the_targets_vocabulary_are_refused_by_field(builder: JobBuilder, field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"beyond the target's vocabulary of {VOCABULARY}") as caught:
        build(builder, **{field: value})
    assert caught.value.field == f"sampling.{field}"


def test_the_last_id_of_the_vocabulary_is_taken(builder: JobBuilder) -> None:
    last = VOCABULARY - 1
    build(builder, logit_bias={last: 1.0}, allowed_token_ids=[last], stop_token_ids=[last])
