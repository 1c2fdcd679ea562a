"""Requests end to end on the tiny model: its noise shows every rule of text, stops and drafting."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from refdraft.decoder.drafter import Drafter
from refdraft.errors import InvalidRequestError, NotFoundError, PreconditionError
from refdraft.index_builder.build import BuildOptions, build_index
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.config import PipelineConfig
from refdraft.service.pipeline import Pipeline
from refdraft.service.text import find_stop
from refdraft.service.types import (
    Attribution,
    Completion,
    Delta,
    Drafting,
    GenerateRequest,
    Message,
    Reference,
    Retrieval,
    Sampling,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CONTEXT_LIMIT = 512
DOCUMENTS = {
    "otter": "Otters hold hands while they sleep. The sea otter keeps a stone in a pocket of skin. 😀 naïve",
    "bridge": "The bridge at Remagen fell in March 1945. Engineers had crossed the river by then.",
    "bread": "Sourdough bread rises slowly. Bakers feed the starter with flour and water every day.",
}
OFF = Drafting(enabled=False)


def problem(text: object) -> None:
    raise AssertionError(str(text))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, tiny_model_directory: Path) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    for name, text in DOCUMENTS.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    out = tmp_path_factory.mktemp("indexes") / "facts"
    build_index([folder], out, Tokenizer.load(tiny_model_directory), BuildOptions(dense=False), problem)
    return out


@pytest.fixture(scope="module")
def pipeline(tiny_model_directory: Path, index: Path) -> Iterator[Pipeline]:
    config = PipelineConfig(slots=2, context_limit=CONTEXT_LIMIT, threads=1)
    with Pipeline.load(tiny_model_directory, indexes={"facts": index}, config=config) as pipeline:
        yield pipeline


async def events(pipeline: Pipeline, request: GenerateRequest) -> tuple[list[Delta], Completion]:
    deltas: list[Delta] = []
    async with aclosing(pipeline.stream(request)) as stream:
        async for event in stream:
            if isinstance(event, Completion):
                return deltas, event
            deltas.append(event)
    raise AssertionError("no completion")


def plain(pipeline: Pipeline, request: GenerateRequest) -> Completion:
    return pipeline.generate_sync(replace(request, drafting=OFF))


def output(completion: Completion) -> tuple[object, ...]:
    """What drafting must not change."""
    usage = (completion.usage.prompt_tokens, completion.usage.completion_tokens)
    return completion.text, completion.token_ids, completion.finish_reason, usage


def helped(request: GenerateRequest, completion: Completion) -> GenerateRequest:
    """The request with its own answer, more or less, as references and prediction."""
    half = len(completion.text) // 2
    references = [
        Reference(text=completion.text, id="whole"),
        Reference(text=DOCUMENTS["otter"], id="otter"),
        Reference(text=completion.text[half:] + completion.text[:half], id="turned"),
    ]
    return replace(request, references=references, prediction=completion.text.replace("a", "e"))


def check_attributions(text: str, attributions: Sequence[Attribution], request: GenerateRequest) -> None:
    texts = {reference.id: reference.text for reference in request.references}
    end = 0
    for span in attributions:
        assert end <= span.output_start < span.output_end
        end = span.output_end
        original = texts[span.document_id][span.document_start : span.document_end]
        assert text[span.output_start : span.output_end] == original


PROMPTS: list[GenerateRequest] = [
    GenerateRequest(prompt="The lambda expression"),
    GenerateRequest(prompt="The lambda expression", raw=True),
    GenerateRequest(prompt=[Message(role="system", content="Be short."), Message(role="user", content="naïve 😀?")]),
    GenerateRequest(prompt=[50, 61, 72, 83, 50, 61]),
]


@pytest.mark.parametrize("sampling", [Sampling(max_tokens=60), Sampling(max_tokens=60, temperature=1.0, seed=3)])
@pytest.mark.parametrize("request_", PROMPTS, ids=["text", "raw", "chat", "ids"])
async def test_every_prompt_streams_what_plain_decoding_writes(
    pipeline: Pipeline, request_: GenerateRequest, sampling: Sampling
) -> None:
    request = replace(request_, sampling=sampling)
    _, expected = await events(pipeline, replace(request, drafting=OFF))
    request = helped(request, expected)
    deltas, completion = await events(pipeline, request)
    assert output(completion) == output(expected)
    assert "".join(delta.text for delta in deltas) == completion.text
    assert [token for delta in deltas for token in delta.token_ids] == list(completion.token_ids)
    check_attributions(completion.text, completion.attributions, request)
    for delta in deltas:
        check_attributions(completion.text, delta.attributions, request)
    assert completion.drafting.accepted_tokens > 0
    assert completion.drafting.steps + completion.drafting.accepted_tokens == len(completion.token_ids) - 1
    assert completion.drafting.accepted_tokens == sum(
        source.accepted_tokens for source in completion.drafting.by_source.values()
    )


async def test_a_stop_string_cuts_both_ways_alike(pipeline: Pipeline) -> None:
    """Stops cut out of the plain text itself: in a word, over tokens, at its start, and one that never comes."""
    request = GenerateRequest(prompt="The lambda expression", sampling=Sampling(max_tokens=50))
    _, whole = await events(pipeline, replace(request, drafting=OFF))
    request = helped(request, whole)
    stops = [(whole.text[at : at + size],) for at in range(0, len(whole.text) - 8, 9) for size in (1, 4)]
    for stop in [*stops, ("never to be seen", whole.text[20:23]), ("never to be seen",)]:
        stopped = replace(request, sampling=replace(request.sampling, stop=stop))
        deltas, completion = await events(pipeline, stopped)
        _, expected = await events(pipeline, replace(stopped, drafting=OFF))
        assert output(completion) == output(expected)
        at = find_stop(whole.text, stop)
        assert completion.text == whole.text[:at]
        assert completion.finish_reason == (whole.finish_reason if at is None else "stop_string")
        assert "".join(delta.text for delta in deltas) == completion.text
        assert [token for delta in deltas for token in delta.token_ids] == list(completion.token_ids)


def test_a_stop_string_behind_which_a_character_breaks_off_is_seen(
    pipeline: Pipeline, tiny_tokenizer: "PreTrainedTokenizerFast"
) -> None:
    """Half a character at the end is no text yet, but what stands before it in the same answer is."""
    request = GenerateRequest(prompt="The lambda expression", sampling=Sampling(max_tokens=400))
    whole = plain(pipeline, request)
    broken = [
        n for n in range(2, len(whole.token_ids)) if tiny_tokenizer.decode(list(whole.token_ids[:n]))[-1] == "\ufffd"
    ]
    assert broken
    for count in broken[:8]:
        sampling = Sampling(max_tokens=count, stop=("\ufffd",))
        assert "\ufffd" not in plain(pipeline, replace(request, sampling=sampling)).text


def test_a_seed_gives_the_same_text_again(pipeline: Pipeline) -> None:
    request = GenerateRequest(prompt="A class", sampling=Sampling(max_tokens=30, temperature=1.2, top_k=50, top_p=0.95))
    first, other = pipeline.generate_sync(request), pipeline.generate_sync(request)
    assert first.seed != other.seed
    assert first.text != other.text
    seeded = replace(request, sampling=replace(request.sampling, seed=first.seed))
    again = pipeline.generate_sync(helped(seeded, first))
    assert output(again) == output(first)
    assert again.seed == first.seed


def test_passages_go_into_the_prompt(pipeline: Pipeline) -> None:
    request = GenerateRequest(prompt="Where do otters sleep?", sampling=Sampling(max_tokens=8))
    bare = plain(pipeline, request)
    asked = replace(request, retrieval=Retrieval(index="facts", top_k=2))
    completion = pipeline.generate_sync(asked)
    assert completion.passages[0].document_id.startswith("otter")
    assert completion.passages[0].text == DOCUMENTS["otter"]
    assert completion.usage.prompt_tokens > bare.usage.prompt_tokens + 20
    assert output(completion) == output(plain(pipeline, asked))


def test_passages_for_drafting_alone_change_nothing(pipeline: Pipeline) -> None:
    request = GenerateRequest(prompt="Where do otters sleep?", sampling=Sampling(max_tokens=40))
    asked = replace(request, retrieval=Retrieval(index="facts", top_k=2, placement="draft_only"))
    completion = pipeline.generate_sync(asked)
    assert completion.passages
    assert output(completion) == output(plain(pipeline, request))


def test_ids_are_drafted_for_from_an_index_only_with_a_query(pipeline: Pipeline) -> None:
    retrieval = Retrieval(index="facts", placement="draft_only")
    request = GenerateRequest(prompt=[50, 61], sampling=Sampling(max_tokens=4), retrieval=retrieval)
    with pytest.raises(InvalidRequestError, match=r"retrieval\.query"):
        pipeline.generate_sync(request)
    assert pipeline.generate_sync(replace(request, retrieval=replace(retrieval, query="bread"))).passages


def test_passages_that_leave_no_room_are_dropped(pipeline: Pipeline) -> None:
    question = "Otters? bread? bridge? " * 15
    request = GenerateRequest(
        prompt=question, sampling=Sampling(max_tokens=4000), retrieval=Retrieval(index="facts", top_k=3)
    )
    completion = plain(pipeline, request)
    assert len(completion.passages) < 3
    assert completion.usage.prompt_tokens <= CONTEXT_LIMIT * 3 // 4


def test_an_unknown_index_is_named_with_those_there_are(pipeline: Pipeline) -> None:
    with pytest.raises(NotFoundError, match="no index is named 'moon'; opened are: facts"):
        pipeline.generate_sync(GenerateRequest(prompt="a", retrieval=Retrieval(index="moon")))
    with pytest.raises(NotFoundError, match="moon"):
        asyncio.run(pipeline.retrieve(Retrieval(index="moon", query="a")))


def test_an_index_of_another_tokenizer_is_refused(tiny_model_directory: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    source = tmp_path / "a.txt"
    source.write_text("abc abc")
    build_index(
        [source],
        tmp_path / "out",
        Tokenizer(Backend(models.BPE({"a": 0, "b": 1}, []))),
        BuildOptions(dense=False),
        problem,
    )
    with pytest.raises(PreconditionError, match="another tokenizer: rebuild it with"):
        Pipeline.load(tiny_model_directory, indexes={"other": tmp_path / "out"}, config=PipelineConfig(slots=1))


def test_a_missing_model_or_index_is_named(tiny_model_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        Pipeline.load(tmp_path / "nowhere")
    with pytest.raises(NotFoundError, match="nothing"):
        Pipeline.load(tiny_model_directory, indexes={"a": tmp_path / "nothing"})


def test_a_prompt_over_the_context_limit_is_refused(pipeline: Pipeline) -> None:
    for size in (CONTEXT_LIMIT, 5 * CONTEXT_LIMIT):
        with pytest.raises(InvalidRequestError, match=f"prompt: {size} tokens; between 1 and {CONTEXT_LIMIT - 1}"):
            pipeline.generate_sync(GenerateRequest(prompt=[50] * size))
    longest = GenerateRequest(prompt=[50] * (CONTEXT_LIMIT - 1), sampling=Sampling(max_tokens=5))
    assert pipeline.generate_sync(longest).finish_reason in ("context_limit", "stop")


def test_max_tokens_beyond_the_context_ends_at_its_limit(pipeline: Pipeline) -> None:
    request = GenerateRequest(prompt=[50] * (CONTEXT_LIMIT - 30), sampling=Sampling(max_tokens=65_536))
    expected = plain(pipeline, request)
    assert expected.finish_reason == "context_limit"
    assert expected.usage.completion_tokens == 30
    assert output(pipeline.generate_sync(helped(request, expected))) == output(expected)


@pytest.mark.parametrize("count", [1, 64, 65, 10_000])
def test_many_references_change_nothing_but_the_speed(pipeline: Pipeline, count: int) -> None:
    request = GenerateRequest(prompt="The lambda expression", sampling=Sampling(max_tokens=30))
    expected = plain(pipeline, request)
    references = [
        Reference(text=f"{n} {expected.text if n == count - 1 else 'lambda'}", id=str(n)) for n in range(count)
    ]
    for prompt in ("The lambda expression", [Message(role="user", content="The lambda expression")]):
        completion = pipeline.generate_sync(replace(request, prompt=prompt, references=references))
        assert output(completion) == output(expected)


def test_a_reference_of_a_megabyte_changes_nothing_but_the_speed(pipeline: Pipeline) -> None:
    request = GenerateRequest(prompt="The lambda expression", sampling=Sampling(max_tokens=30))
    expected = plain(pipeline, request)
    text = (expected.text + " the lambda expression of a class. ") * 5000
    reference = Reference(text=text[: 1 << 20], id="large")
    completion = pipeline.generate_sync(replace(request, references=[reference]))
    assert output(completion) == output(expected)
    assert completion.drafting.by_source["references"].accepted_tokens > 0, "a long text is cut, not left out"


async def test_the_synchronous_call_works_inside_a_running_loop(pipeline: Pipeline) -> None:
    request = GenerateRequest(prompt="The lambda expression", sampling=Sampling(max_tokens=5))
    assert output(pipeline.generate_sync(request)) == output(await pipeline.generate(request))


def test_prediction_counts(pipeline: Pipeline) -> None:
    request = GenerateRequest(prompt="The lambda expression", sampling=Sampling(max_tokens=60))
    expected = plain(pipeline, request)
    predicted = replace(request, prediction=expected.text, drafting=Drafting(sources=("prediction",)))
    completion = pipeline.generate_sync(predicted)
    assert output(completion) == output(expected)
    assert completion.usage.accepted_prediction_tokens > 0
    assert set(completion.drafting.by_source) == {"prediction"}
    counts = completion.drafting.by_source["prediction"]
    assert completion.usage.accepted_prediction_tokens == counts.accepted_tokens
    assert completion.usage.rejected_prediction_tokens == counts.drafted_tokens - counts.accepted_tokens
    assert completion.attributions == ()


@pytest.mark.parametrize("off", [OFF, Drafting(max_draft_tokens=0), Drafting(sources=())])
def test_without_drafting_nothing_is_drafted(pipeline: Pipeline, off: Drafting) -> None:
    request = GenerateRequest(prompt="The lambda expression", sampling=Sampling(max_tokens=20))
    expected = plain(pipeline, request)
    completion = pipeline.generate_sync(replace(helped(request, expected), drafting=off))
    assert output(completion) == output(expected)
    assert completion.drafting.drafted_tokens == 0
    assert completion.drafting.steps == len(completion.token_ids) - 1
    assert completion.drafting.tokens_per_step == 1.0
    assert completion.drafting.by_source == {}
    assert completion.attributions == ()


def test_a_switched_off_source_drafts_nothing(pipeline: Pipeline) -> None:
    request = GenerateRequest(prompt="The lambda expression", sampling=Sampling(max_tokens=40))
    expected = plain(pipeline, request)
    for sources in (("references",), ("prompt",), ("output",), ("prediction", "output")):
        drafting = Drafting(sources=sources)
        completion = pipeline.generate_sync(replace(helped(request, expected), drafting=drafting))
        assert output(completion) == output(expected)
        assert set(completion.drafting.by_source) <= set(sources)


@pytest.mark.parametrize("samples", [1, 5])
async def test_a_stream_that_is_closed_makes_room(pipeline: Pipeline, samples: int) -> None:
    request = GenerateRequest(prompt="The lambda expression", sampling=Sampling(max_tokens=400, n=samples))
    for _ in range(5):
        async with aclosing(pipeline.stream(request)) as stream:
            async for _event in stream:
                break
    short = replace(request, sampling=Sampling(max_tokens=3))
    assert (await asyncio.wait_for(pipeline.generate(short), 5)).usage.completion_tokens <= 3


def test_the_target_and_the_indexes_describe_themselves(pipeline: Pipeline, index: Path) -> None:
    info = pipeline.model_info()
    assert (info.vocabulary_size, info.context_limit, info.slots) == (512, CONTEXT_LIMIT, 2)
    assert (info.dtype, info.device, info.numerics) == ("float32", "cpu", "fast")
    (facts,) = pipeline.index_infos()
    assert (facts.name, facts.documents, facts.modes) == ("facts", 3, ("bm25",))
    assert facts.tokenizer_fingerprint == info.tokenizer_fingerprint


@pytest.mark.parametrize(
    "options", [{"slots": 0}, {"queue_limit": -1}, {"context_limit": 1}, {"dtype": "int8"}, {"threads": 0}]
)
def test_a_configuration_is_checked_at_once(options: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        PipelineConfig(**options)  # type: ignore[arg-type]


def test_a_drafter_that_fails_is_counted_and_changes_nothing_else(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = GenerateRequest(prompt="The lambda expression", sampling=Sampling(max_tokens=20))
    expected = plain(pipeline, request)

    def fail(drafter: Drafter, limit: int) -> None:
        raise RuntimeError("a drafter's fault")

    monkeypatch.setattr(Drafter, "propose", fail)
    completion = pipeline.generate_sync(request)
    assert output(completion) == output(expected)
    assert (completion.drafting.drafter_faults, completion.drafting.drafted_tokens) == (1, 0)
