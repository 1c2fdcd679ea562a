"""Every option end to end on the tiny model: it does what it says, and drafting changes nothing of it."""

import asyncio
import json
import re
import shutil
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from refdraft.errors import InvalidRequestError
from refdraft.service.client import Client
from refdraft.service.config import PipelineConfig
from refdraft.service.pipeline import Pipeline
from refdraft.service.server import Server
from refdraft.service.types import (
    Completion,
    Delta,
    Drafting,
    GenerateRequest,
    Reference,
    Sampling,
    Structure,
    TokenLogprob,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

EOS, VOCABULARY = 2, 512
PROMPT = "The lambda expression"
OFF = Drafting(enabled=False)
CONFIG = PipelineConfig(slots=2, context_limit=256, threads=1)


@pytest.fixture(scope="module")
def pipeline(tiny_model_directory: Path) -> Iterator[Pipeline]:
    with Pipeline.load(tiny_model_directory, config=CONFIG) as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def client(pipeline: Pipeline) -> Iterator[Client]:
    """A client of a server on a thread of its own, over a real channel."""
    server = Server(pipeline, port=0)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with Client(asyncio.run_coroutine_threadsafe(server.start(), loop).result(10), timeout_s=30) as client:
        yield client
    asyncio.run_coroutine_threadsafe(server.stop(drain_s=1), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def request(**sampling: Any) -> GenerateRequest:
    return GenerateRequest(prompt=PROMPT, sampling=Sampling(**{"max_tokens": 40, "seed": 0} | sampling))


def plain(pipeline: Pipeline, asked: GenerateRequest) -> Completion:
    return pipeline.generate_sync(replace(asked, drafting=OFF))


def helped(asked: GenerateRequest, text: str) -> GenerateRequest:
    """The request with its own answer, more or less, to draft from."""
    return replace(asked, references=[Reference(text=text, id="whole")], prediction=text.replace("a", "e"))


def output(completion: Completion) -> tuple[object, ...]:
    """What drafting must not change."""
    return (
        completion.text,
        completion.token_ids,
        completion.finish_reason,
        completion.seed,
        completion.usage.prompt_tokens,
        completion.usage.completion_tokens,
        [(place.token_id, [likely.token_id for likely in place.top]) for place in completion.logprobs],
    )


def close(first: Sequence[TokenLogprob], second: Sequence[TokenLogprob]) -> bool:
    """Equal up to what passes of different shapes make of float32."""
    pairs = [(a.logprob, b.logprob) for a, b in zip(first, second, strict=True)]
    pairs += [
        (a.logprob, b.logprob)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one.top, other.top, strict=True)
    ]
    return all(abs(a - b) < 1e-3 for a, b in pairs)


def check_drafted(pipeline: Pipeline, asked: GenerateRequest) -> Completion:
    """Drafted, streamed and plain answers are one; returns it."""
    expected = plain(pipeline, asked)
    drafted = pipeline.generate_sync(helped(asked, expected.text))
    assert output(drafted) == output(expected)
    assert close(drafted.logprobs, expected.logprobs)
    return drafted


SAMPLED: dict[str, Any] = {"temperature": 1.5, "seed": 11}


@pytest.mark.parametrize(
    ("base", "option"),
    [
        (SAMPLED, {"min_p": 0.2}),
        ({}, {"repetition_penalty": 1.5}),
        ({}, {"presence_penalty": 2.0}),
        ({}, {"frequency_penalty": 2.0}),
        ({}, {"frequency_penalty": -2.0}),
        (SAMPLED, {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5, "top_p": 0.9}),
        ({}, {"allowed_token_ids": tuple(range(40, 120))}),
        ({}, {"logit_bias": dict.fromkeys(range(40, 300), -100.0)}),
    ],
)
def test_an_option_changes_the_answer_and_drafting_does_not(
    pipeline: Pipeline, base: dict[str, Any], option: dict[str, Any]
) -> None:
    without = plain(pipeline, request(**base))
    completion = check_drafted(pipeline, request(**base, **option))
    assert completion.token_ids != without.token_ids
    if "allowed_token_ids" in option:
        assert set(completion.token_ids) <= set(option["allowed_token_ids"])
    if "logit_bias" in option:
        assert not set(completion.token_ids) & option["logit_bias"].keys()


def test_bad_words_are_not_written(pipeline: Pipeline, tiny_tokenizer: "PreTrainedTokenizerFast") -> None:
    whole = plain(pipeline, request())
    texts = {token: str(tiny_tokenizer.decode([token])) for token in whole.token_ids}
    words = {token: text.lstrip(" ") for token, text in texts.items() if text.strip().isalpha()}
    completion = check_drafted(pipeline, request(bad_words=list(words.values())))
    assert len(words) > 5
    assert not words.keys() & set(completion.token_ids)
    first = next(place for place, token in enumerate(whole.token_ids) if token in words)
    assert completion.token_ids[:first] == whole.token_ids[:first], "up to the first the answer is the same"


@pytest.mark.parametrize("place", [0, 5, 20])
def test_a_stop_token_is_the_last_and_adds_no_text(pipeline: Pipeline, place: int) -> None:
    whole = plain(pipeline, request())
    token = whole.token_ids[place]
    completion = check_drafted(pipeline, request(stop_token_ids=[token]))
    first = whole.token_ids.index(token)
    assert completion.token_ids == whole.token_ids[: first + 1]
    assert completion.finish_reason == "stop_token"
    assert completion.text == plain(pipeline, request(max_tokens=first)).text if first else completion.text == ""


def test_the_end_of_sequence_ends_an_answer_unless_ignored(pipeline: Pipeline) -> None:
    sure = {"logit_bias": {EOS: 100.0}}
    completion = check_drafted(pipeline, request(**sure))
    assert (completion.token_ids, completion.text, completion.finish_reason) == ((EOS,), "", "stop")
    ignored = check_drafted(pipeline, request(**sure, ignore_eos=True))
    assert ignored.finish_reason == "length"
    assert ignored.token_ids == (EOS,) * 40


@pytest.mark.parametrize("min_tokens", [1, 7, 40])
def test_no_end_comes_before_min_tokens(pipeline: Pipeline, min_tokens: int) -> None:
    whole = plain(pipeline, request())
    completion = check_drafted(pipeline, request(min_tokens=min_tokens, logit_bias={EOS: 100.0}))
    assert len(completion.token_ids) == min(min_tokens + 1, 40)
    assert completion.finish_reason == ("stop" if min_tokens < 40 else "length")
    stop = whole.text[1:3]
    completion = check_drafted(pipeline, request(min_tokens=min_tokens, stop=[stop]))
    exempt = plain(pipeline, request(max_tokens=min_tokens)).text
    later = whole.text.find(stop, max(0, len(exempt) - len(stop) + 1))
    assert completion.text == (whole.text if later < 0 or min_tokens == 40 else whole.text[:later])


def test_logprobs_are_the_targets_own(
    pipeline: Pipeline, tiny_model_directory: Path, tiny_tokenizer: "PreTrainedTokenizerFast"
) -> None:
    """Whatever the options: those of a forward pass of transformers over the whole output."""
    prompt = tiny_tokenizer(PROMPT)["input_ids"]
    asked = replace(request(**SAMPLED, logprobs=3, frequency_penalty=1.0, logit_bias={7: 5.0}), prompt=prompt)
    completion = check_drafted(pipeline, asked)
    model = LlamaForCausalLM.from_pretrained(tiny_model_directory)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0]
    expected = torch.log_softmax(logits.double(), dim=-1)[len(prompt) - 1 : -1]
    assert len(completion.logprobs) == len(completion.token_ids)
    for place, row, token in zip(completion.logprobs, expected, completion.token_ids, strict=True):
        assert place.token_id == token
        assert place.logprob == pytest.approx(float(row[token]), abs=1e-3)
        values, ids = row.topk(3)
        assert [likely.token_id for likely in place.top] == ids.tolist()
        assert [likely.logprob for likely in place.top] == pytest.approx(values.tolist(), abs=1e-3)


def test_logprobs_are_as_many_as_asked_for(pipeline: Pipeline) -> None:
    assert plain(pipeline, request()).logprobs == ()
    assert {len(place.top) for place in plain(pipeline, request(logprobs=0)).logprobs} == {0}
    assert {len(place.top) for place in plain(pipeline, request(logprobs=20)).logprobs} == {20}


def test_samples_are_what_their_seeds_give_alone(pipeline: Pipeline) -> None:
    asked = request(temperature=1.2, seed=2**63 - 2, n=4, logprobs=1, max_tokens=20)
    samples = pipeline.generate_samples_sync(helped(asked, plain(pipeline, request()).text))
    seeds = [2**63 - 2, 2**63 - 1, 0, 1]
    assert [(completion.sample, completion.seed) for completion in samples] == list(enumerate(seeds))
    assert len({completion.token_ids for completion in samples}) == 4
    for completion in samples:
        alone = plain(pipeline, replace(asked, sampling=replace(asked.sampling, n=1, seed=completion.seed)))
        assert output(completion) == output(alone)


async def stream(pipeline: Pipeline, asked: GenerateRequest) -> AsyncIterator[Delta | Completion]:
    async with aclosing(pipeline.stream(asked)) as events:
        async for event in events:
            yield event


async def test_streamed_samples_are_each_whole_and_end_with_their_completion(pipeline: Pipeline) -> None:
    whole = await pipeline.generate(request())
    asked = request(temperature=1.2, seed=3, n=3, logprobs=0, stop=["e", whole.text[3:6]])
    texts = [""] * 3
    tokens: list[tuple[int, ...]] = [()] * 3
    logprobs: list[tuple[TokenLogprob, ...]] = [()] * 3
    ended: list[int] = []
    async for event in stream(pipeline, asked):
        assert event.sample not in ended
        if isinstance(event, Delta):
            texts[event.sample] += event.text
            tokens[event.sample] += tuple(event.token_ids)
            logprobs[event.sample] += tuple(event.logprobs)
            continue
        ended.append(event.sample)
        assert (event.text, event.token_ids) == (texts[event.sample], tokens[event.sample])
        assert event.logprobs == logprobs[event.sample]
    assert sorted(ended) == [0, 1, 2]


def test_without_a_seed_each_sample_tells_its_own(pipeline: Pipeline) -> None:
    first, second = pipeline.generate_samples_sync(request(temperature=1.2, n=2, seed=None))
    assert second.seed == (first.seed + 1) % 2**63
    assert first.text != second.text


async def test_one_completion_is_of_one_sample(pipeline: Pipeline) -> None:
    for ask in (pipeline.generate(request(n=2)), asyncio.to_thread(pipeline.generate_sync, request(n=2))):
        with pytest.raises(InvalidRequestError, match=r"sampling\.n: .* call generate_samples"):
            await ask


STRUCTURES = [
    Structure(kind="json_object"),
    Structure(kind="json_schema", source=json.dumps({"enum": ["otter", "bridge", 12]})),
    Structure(kind="regex", source=r"(ab|cd){2,5}[0-9]{3}é"),
    Structure(kind="lark", source='start: "x" ("yes" | "no") /[0-9]{2}/'),
]


@pytest.mark.parametrize("structure", STRUCTURES, ids=[structure.kind for structure in STRUCTURES])
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_a_structure_is_kept_to(pipeline: Pipeline, structure: Structure, sampling: dict[str, Any]) -> None:
    completion = check_drafted(pipeline, replace(request(**sampling, logprobs=1), structure=structure))
    check_structure(structure, completion)


def check_structure(structure: Structure, completion: Completion) -> None:
    match structure.kind:
        case "json_object":  # the tiny model's noise may fill its strings until max_tokens
            assert completion.text.lstrip().startswith("{")
            if completion.finish_reason == "stop":
                assert isinstance(json.loads(completion.text), dict)
        case "json_schema":
            assert json.loads(completion.text) in ("otter", "bridge", 12)
        case "regex":
            assert re.fullmatch(structure.source, completion.text)
        case "lark":
            assert re.fullmatch("x(yes|no)[0-9]{2}", completion.text)


def test_a_stop_string_cuts_a_structure(pipeline: Pipeline) -> None:
    structure = Structure(kind="regex", source="ab{5}c{5}d")
    completion = check_drafted(pipeline, replace(request(stop=["bc"]), structure=structure))
    assert (completion.text, completion.finish_reason) == ("abbbb", "stop_string")


def test_a_structure_that_cannot_be_compiled_is_refused(pipeline: Pipeline) -> None:
    for structure in (Structure(kind="regex", source="("), Structure(kind="json_schema", source="{")):
        with pytest.raises(InvalidRequestError, match="structure") as caught:
            pipeline.generate_sync(replace(request(), structure=structure))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["logit_bias", "allowed_token_ids", "stop_token_ids"])
def test_ids_beyond_the_vocabulary_are_refused(client: Client, field: str) -> None:
    value: Any = {VOCABULARY: 1.0} if field == "logit_bias" else [VOCABULARY]
    with pytest.raises(InvalidRequestError, match="beyond the target's vocabulary of 512") as caught:
        client.generate(request(**{field: value}))
    assert caught.value.field == f"sampling.{field}"


def test_options_that_leave_no_token_are_refused(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="no token is left"):
        client.generate(request(allowed_token_ids=[EOS], min_tokens=1))


@pytest.mark.parametrize(
    "asked",
    [
        request(**SAMPLED, n=3, logprobs=2),
        request(stop_token_ids=range(100, 200), logprobs=0),
        request(min_tokens=12, logit_bias={EOS: 100.0}, bad_words=["e", "the"], min_p=0.1, repetition_penalty=1.2),
        *(replace(request(n=2), structure=structure) for structure in STRUCTURES),
    ],
)
def test_the_wire_changes_nothing(client: Client, pipeline: Pipeline, asked: GenerateRequest) -> None:
    asked = replace(asked, sampling=replace(asked.sampling, seed=5), drafting=OFF)
    expected = pipeline.generate_samples_sync(asked)
    assert client.generate_samples(asked) == expected
    streamed = [event for event in client.stream(asked) if isinstance(event, Completion)]
    assert sorted(streamed, key=lambda completion: completion.sample) == list(expected)


def odd_target(directory: Path, tiny_model_directory: Path, vocabulary_size: int) -> Path:
    """A checkpoint whose embedding is not of the tokenizer's size."""
    shutil.copytree(tiny_model_directory, directory)
    config = LlamaConfig.from_pretrained(tiny_model_directory)
    config.vocab_size = vocabulary_size
    with torch.random.fork_rng():
        torch.manual_seed(1)
        LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def test_a_target_may_choose_ids_that_the_tokenizer_does_not_know(tmp_path: Path, tiny_model_directory: Path) -> None:
    directory = odd_target(tmp_path / "padded", tiny_model_directory, 520)
    with Pipeline.load(directory, config=CONFIG) as pipeline:
        asked = request(allowed_token_ids=[100, 515, 519], presence_penalty=2.0, logprobs=1, stop=["never"])
        completion = check_drafted(pipeline, asked)
        assert {515, 519} & set(completion.token_ids)
        known = [token for token in completion.token_ids if token == 100]
        assert len(completion.text) == len(plain(pipeline, request(allowed_token_ids=[100], max_tokens=1)).text) * len(
            known
        )


def test_a_tokenizer_may_know_ids_that_the_target_does_not(tmp_path: Path, tiny_model_directory: Path) -> None:
    directory = odd_target(tmp_path / "narrow", tiny_model_directory, 300)
    with Pipeline.load(directory, config=CONFIG) as pipeline:
        with pytest.raises(InvalidRequestError, match=r"prompt: token id \d+ .* is beyond the target's vocabulary"):
            pipeline.generate_sync(replace(request(), raw=True))
        fine = replace(request(bad_words=[PROMPT, "a"]), prompt=[50, 61, 72])
        check_drafted(pipeline, replace(fine, prediction=PROMPT))
