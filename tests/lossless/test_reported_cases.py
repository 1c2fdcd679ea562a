"""What went wrong in other systems, by name: each case was reported of one that drafts."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from refdraft.decoder.draft import Draft, Origin
from refdraft.decoder.drafter import DrafterOptions
from refdraft.decoder.engine import EngineConfig
from refdraft.decoder.request import DecodeRequest
from refdraft.decoder.sampling import SamplingOptions
from refdraft.decoder.target import Target
from refdraft.errors import InvalidRequestError
from refdraft.index_builder.build import BuildOptions, build_index
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.config import PipelineConfig
from refdraft.service.pipeline import Pipeline
from refdraft.service.structure import Structures
from refdraft.service.types import (
    Completion,
    Drafting,
    GenerateRequest,
    Reference,
    Retrieval,
    Sampling,
    Structure,
)
from tests.decoder.conftest import Decoder, Result
from tests.decoder.drafts import PROMPT, VOCABULARY
from tests.lossless import oracle

CONTEXT_LIMIT = 72  # tokens
WRITTEN = 50  # tokens that `Known.output` knows
DRAFT = 15  # tokens a step at most; strict passes have 16 columns, since with 17 some CPUs' kernels break strict
NUMERICS = ("fast", "strict")
SEEDED = SamplingOptions(temperature=0.9, top_p=0.95, seed=11)


def load(model: Path) -> Target:
    return Target.load(model, slots=3, context_limit=CONTEXT_LIMIT, max_width=DRAFT + 1)


class Known(Decoder):
    """A decoder that remembers what the target writes."""

    def __init__(self, target: Target, numerics: Any) -> None:
        super().__init__(target, EngineConfig(numerics=numerics, max_draft_tokens=DRAFT, prefill_chunk=DRAFT + 1))
        self._outputs: dict[str, list[int]] = {}

    def output(self, request: DecodeRequest) -> list[int]:
        """The first `WRITTEN` tokens behind a prompt under its sampling options, if nothing ends them."""
        endless = DecodeRequest(request.prompt, WRITTEN, sampling=request.sampling)
        key = repr(endless)
        if key not in self._outputs:
            self._outputs[key] = self.plain(endless).ids
        return self._outputs[key]


@pytest.fixture(scope="module")
def target(tiny_model_directory: Path) -> Target:
    return load(tiny_model_directory)


@pytest.fixture(scope="module", params=NUMERICS)
def decoder(target: Target, request: pytest.FixtureRequest) -> Known:
    return Known(target, request.param)


class Script:
    """Stands in for a drafter: drafts a given output, `size` tokens at a time, whatever the limit."""

    def __init__(self, output: Sequence[Any], size: int = DRAFT) -> None:
        self._output, self._size, self._written = output, size, 0

    def propose(self, limit: int) -> Draft:
        tokens = self._output[self._written : self._written + self._size]
        return Draft.chain(tokens, [Origin("script", 0, 0)] * len(tokens), [1.0] * len(tokens))

    def observe(self, tokens: Sequence[int], logits: object = None) -> None:
        self._written += len(tokens)


def counts(result: Result) -> tuple[int, int, int]:
    """Steps, draft tokens, and accepted ones of these."""
    assert result.statistics is not None
    statistics = result.statistics
    return statistics.steps, sum(statistics.drafted.values()), sum(statistics.accepted.values())


def all_held(tokens: int, size: int = DRAFT) -> tuple[int, int, int]:
    """The counts of an output of so many tokens that was drafted, `size` tokens a step, without a mistake.

    Its first token comes with the prefill, and each step's last one is the target's own.
    """
    steps = math.ceil((tokens - 1) / (size + 1))
    return steps, tokens - 1 - steps, tokens - 1 - steps


@pytest.mark.parametrize("sampling", [SamplingOptions(), SEEDED])
def test_eos_in_the_middle_of_an_accepted_block(decoder: Known, sampling: SamplingOptions) -> None:
    request = DecodeRequest(PROMPT, 50, sampling=sampling)
    ids = decoder.output(request)
    middles = [index for index in range(1, DRAFT) if ids[index] not in ids[:index]]
    assert len(middles) > 5
    for middle in middles:
        ending = replace(request, eos_ids=frozenset({ids[middle]}))
        result = decoder.run([ending], drafters={0: Script(ids)})[0]
        assert result.output == decoder.plain(ending).output == (ids[: middle + 1], "stop")
        assert counts(result) == (1, DRAFT, middle)


@pytest.mark.parametrize("room", [1, 2, 3, DRAFT + 1, DRAFT + 2, DRAFT + 3])
@pytest.mark.parametrize("limit", ["max_tokens", "context_limit"])
def test_a_draft_that_would_pass_the_context_limit_or_max_tokens(decoder: Known, limit: str, room: int) -> None:
    request = DecodeRequest(PROMPT, room)
    if limit == "context_limit":
        request = DecodeRequest((PROMPT * 16)[: CONTEXT_LIMIT - room], 1000)
    ids = decoder.output(request)
    result = decoder.run([request], drafters={0: Script([*ids, *range(100)], size=90)})[0]
    assert result.output == decoder.plain(request).output
    assert result.output == (ids[:room], "length" if limit == "max_tokens" else "context_limit")
    assert counts(result) == all_held(room)


@pytest.mark.parametrize("foreign", [-1, VOCABULARY, 2**31, 2**70])
def test_draft_ids_outside_the_vocabulary(decoder: Known, foreign: int) -> None:
    request = DecodeRequest(PROMPT, 40)
    ids = decoder.output(request)
    script = Script([token if place % 5 else foreign for place, token in enumerate(ids)])
    copied = replace(request, documents={"references": [[*PROMPT, *ids[:9], foreign, *ids[9:]]]})
    results = decoder.run([request, copied] if foreign >= 0 else [request], drafters={0: script})
    for result in results:
        assert result.output == decoder.plain(request).output == (ids[:40], "length")
        assert result.statistics is not None
        assert result.statistics.drafter_faults == 0
    assert counts(results[0]) == (8, 31, 31)  # four a step, up to the foreign one


def test_ragged_draft_lengths_in_one_batch(decoder: Known) -> None:
    requests = [DecodeRequest(PROMPT[start:], 30, sampling=replace(SEEDED, seed=start)) for start in range(3)]
    outputs = [decoder.output(request) for request in requests]
    sizes = (0, 1, DRAFT)
    scripts = {index: Script(ids, size) for index, (ids, size) in enumerate(zip(outputs, sizes, strict=True))}
    results = decoder.run(requests, drafters=scripts)
    for request, result, ids in zip(requests, results, outputs, strict=True):
        assert result.output == decoder.plain(request).output == (ids[:30], "length")
    assert [counts(result) for result in results] == [all_held(30, size) for size in sizes]


def test_a_shorter_request_reusing_a_longer_ones_slot(decoder: Known) -> None:
    long = [DecodeRequest((*PROMPT * 8, index), 20) for index in range(3)]
    short = [DecodeRequest(PROMPT[index:], 20, sampling=SEEDED) for index in range(3)]
    requests = [*long, *short]  # three slots
    scripts = {index: Script(decoder.output(request)) for index, request in enumerate(requests)}
    for request, result in zip(requests, decoder.run(requests, drafters=scripts), strict=True):
        assert result.output == decoder.plain(request).output
        assert result.output == (decoder.output(request)[:20], "length")
        assert counts(result) == all_held(20)


@pytest.mark.parametrize("numerics", NUMERICS)
@pytest.mark.parametrize("sampling", [SamplingOptions(), SamplingOptions(temperature=0.8, top_k=1, seed=5)])
def test_an_exact_logit_tie(
    tiny_model_directory: Path, tmp_path: Path, numerics: str, sampling: SamplingOptions
) -> None:
    """Every token has a twin, the next id, of the same logit."""
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_model_directory)
    with torch.no_grad():
        weight = model.get_output_embeddings().weight
        weight[1::2] = weight[::2]
    model.save_pretrained(tmp_path)
    decoder = Known(load(tmp_path), numerics)
    request = DecodeRequest(PROMPT, 40, sampling=sampling, top_logprobs=2)
    plain, ids = decoder.plain(request), decoder.output(request)
    twins = [token + 1 for token in ids]
    first, second = decoder.run([request, request], drafters={0: Script(ids), 1: Script(twins)})
    assert first.output == second.output == plain.output == (ids[:40], "length")
    assert all(token % 2 == 0 for token in ids)
    assert all(found.top[0][1] == found.top[1][1] for found in first.logprobs), "the tie is exact"
    assert counts(first) == all_held(40)
    assert counts(second)[::2] == (39, 0)


def test_a_per_request_seed_with_neighbours(decoder: Known) -> None:
    request = DecodeRequest(PROMPT, 30, sampling=SEEDED)
    ids = decoder.output(request)
    neighbours = [DecodeRequest(PROMPT, 5 + 9 * seed, sampling=replace(SEEDED, seed=seed)) for seed in range(4)]
    for place in (0, 2, 4):
        requests = [*neighbours[:place], request, *neighbours[place:]]
        results = decoder.run(requests, arrivals=[0, 0, 2, 3, 5], drafters={place: Script(ids)})
        assert results[place].output == decoder.plain(request).output == (ids[:30], "length")
        assert counts(results[place]) == all_held(30)
        assert len({tuple(result.ids[:5]) for result in results}) == 5, "each has its own seed"


def test_frequency_penalty_with_long_accepted_spans(decoder: Known) -> None:
    request = DecodeRequest(PROMPT, 50, sampling=SamplingOptions(frequency_penalty=0.7, presence_penalty=0.2))
    ids = decoder.output(request)
    result = decoder.run([request], drafters={0: Script(ids)})[0]
    assert result.output == decoder.plain(request).output == (ids, "length")
    assert counts(result) == all_held(50)
    expected = oracle.decode(request, lambda context: logits(decoder.target, context)[-1], CONTEXT_LIMIT)
    assert result.output == (expected.ids, expected.reason)
    assert ids != decoder.output(DecodeRequest(PROMPT, 50))


def logits(target: Target, context: Sequence[int]) -> NDArray[np.float32]:
    """The logits behind every token, float32 [tokens, vocabulary], without the engine's cache and masks."""
    model: Any = target.model
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            found: NDArray[np.float32] = model(torch.tensor([context]), use_cache=False).logits[0].numpy()
    finally:
        model.set_attn_implementation(attention)
    return found


@pytest.mark.parametrize("top", [0, 3])
def test_logprobs_of_accepted_tokens(decoder: Known, top: int) -> None:
    request = DecodeRequest(PROMPT, 40, sampling=replace(SEEDED, frequency_penalty=0.4), top_logprobs=top)
    ids, plain = decoder.output(request), decoder.plain(request)
    result = decoder.run([request], drafters={0: Script(ids)})[0]
    assert result.output == plain.output == (ids[:40], "length")
    assert counts(result) == all_held(40)
    if decoder.config.numerics == "strict":
        assert result.logprobs == plain.logprobs
    rows = torch.from_numpy(logits(decoder.target, [*PROMPT, *ids[:40]])[len(PROMPT) - 1 : -1]).double()
    expected = rows.log_softmax(1)
    for token, row, found in zip(ids, expected, result.logprobs, strict=False):
        assert found.token == token
        assert found.logprob == pytest.approx(float(row[token]), abs=1e-3)
        assert [value for _, value in found.top] == pytest.approx(row.topk(top).values.tolist(), abs=1e-3)
        assert [likely for likely, _ in found.top] == row.topk(top).indices.tolist()
    assert len(result.logprobs) == 40
    assert not all(math.isclose(found.logprob, 0.0, abs_tol=0.1) for found in result.logprobs)


def test_a_grammar_that_ends_at_eos(decoder: Known, tiny_tokenizer: Any) -> None:
    """A draft runs through the grammar's end and on behind it."""
    [eos] = decoder.target.eos_ids
    structures = Structures(Tokenizer(tiny_tokenizer.backend_tokenizer), VOCABULARY, decoder.target.eos_ids)

    def request() -> DecodeRequest:
        constraint = structures.compile("regex", r"(yes|no|perhaps)(, (yes|no|perhaps)){3}\.")
        return DecodeRequest(PROMPT, 60, sampling=SEEDED, eos_ids=frozenset({eos}), constraint=constraint)

    plain = decoder.plain(request())
    assert plain.ids[-1] == eos
    assert plain.reason == "stop"
    words = tiny_tokenizer.decode(plain.ids[:-1]).removesuffix(".").split(", ")
    assert len(words) == 4
    assert set(words) <= {"yes", "no", "perhaps"}
    for behind in ([], [eos] * 20, plain.ids):
        result = decoder.run([request()], drafters={0: Script([*plain.ids, *behind])})[0]
        assert result.output == plain.output
        assert counts(result)[1] == counts(result)[2] >= 8, "all that the grammar lets through is true"
        assert counts(result)[0] <= 2


def test_a_drafter_that_raises(decoder: Known) -> None:
    class Failing(Script):
        def propose(self, limit: int) -> Draft:
            if self._written > 20:
                raise RuntimeError("a drafter's bug")
            return super().propose(limit)

    request, neighbour = DecodeRequest(PROMPT, 50, sampling=SEEDED), DecodeRequest(PROMPT, 50)
    scripts = {0: Failing(decoder.output(request)), 1: Script(decoder.output(neighbour))}
    failing, healthy = decoder.run([request, neighbour], drafters=scripts)
    assert failing.output == decoder.plain(request).output == (decoder.output(request)[:50], "length")
    assert healthy.output == decoder.plain(neighbour).output == (decoder.output(neighbour)[:50], "length")
    assert failing.statistics is not None
    assert failing.statistics.drafter_faults == 1
    assert counts(failing) == (2 + 49 - 2 * (DRAFT + 1), 2 * DRAFT, 2 * DRAFT)
    assert counts(healthy) == all_held(50)


def test_a_drafter_that_returns_10_000_tokens(decoder: Known) -> None:
    request = DecodeRequest(PROMPT, 50, max_draft_tokens=12)
    ids = decoder.output(request)
    script = Script(ids + ids * 200, size=10_000)
    assert len(script.propose(DRAFT)) == 10_000
    result = decoder.run([request], drafters={0: script})[0]
    assert result.output == decoder.plain(request).output == (ids[:50], "length")
    assert counts(result) == all_held(50, 12)


@pytest.mark.parametrize("prompt", [PROMPT[:1], PROMPT, PROMPT * 6])
def test_a_match_of_the_full_context_that_is_never_found(decoder: Known, prompt: tuple[int, ...]) -> None:
    """A reference begins as the context does; another one, which parts from it in the first token, misleads."""
    request = DecodeRequest(prompt, 30, drafting=DrafterOptions(copy_prompt=False, copy_output=False))
    ids = decoder.output(request)
    misleading = [prompt[0] + 1, *prompt[1:], ids[0], *reversed(ids)]
    documents = {"references": [misleading, [*prompt, *ids]]}
    result = decoder.run([replace(request, documents=documents)])[0]
    assert result.output == decoder.plain(request).output == (ids[:30], "length")
    steps, _, accepted = counts(result)
    assert accepted == 29 - steps
    assert steps <= all_held(30)[0] + 1


# The rest is about text, or about what a user is told, so it goes through the whole pipeline.


@pytest.fixture(scope="module", params=NUMERICS)
def pipeline(tiny_model_directory: Path, request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    config = PipelineConfig(slots=2, context_limit=256, threads=1, numerics=request.param)
    with Pipeline.load(tiny_model_directory, config=config) as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def asked(tiny_tokenizer: Any) -> GenerateRequest:
    """A request for letters and blanks only, so that an output's text is its tokens' texts put together."""
    texts = [tiny_tokenizer.decode([token]) for token in range(VOCABULARY)]
    letters = [token for token, text in enumerate(texts) if re.fullmatch("[A-Za-z ]+", text)]
    return GenerateRequest(prompt="The lambda", sampling=Sampling(max_tokens=50, allowed_token_ids=letters, logprobs=2))


def plain(pipeline: Pipeline, request: GenerateRequest) -> Completion:
    return pipeline.generate_sync(replace(request, drafting=Drafting(enabled=False)))


def drafted(pipeline: Pipeline, request: GenerateRequest, hint: str) -> Completion:
    """The answer, drafted from a text that it repeats; it must be plain decoding's."""
    completion, expected = pipeline.generate_sync(replace(request, prediction=hint)), plain(pipeline, request)
    assert completion.drafting.accepted_tokens > 5
    assert visible(completion) == visible(expected)
    assert len(completion.logprobs) == len(expected.logprobs)
    for ours, theirs in zip(completion.logprobs, expected.logprobs, strict=True):
        assert ours.token_id == theirs.token_id
        assert ours.logprob == pytest.approx(theirs.logprob, abs=0 if strict(pipeline) else 1e-3)
    return completion


def visible(completion: Completion) -> tuple[object, ...]:
    return completion.text, completion.token_ids, completion.finish_reason, completion.usage.completion_tokens


def strict(pipeline: Pipeline) -> bool:
    return pipeline.model_info().numerics == "strict"


def with_sampling(request: GenerateRequest, **changes: Any) -> GenerateRequest:
    return replace(request, sampling=replace(request.sampling, **changes))


def test_a_stop_string_hidden_by_the_length_cap(
    pipeline: Pipeline, asked: GenerateRequest, tiny_tokenizer: Any
) -> None:
    """The stop string ends with the very last token that max_tokens allows, and began in one before."""
    whole = plain(pipeline, asked)
    pieces = [tiny_tokenizer.decode([token]) for token in whole.token_ids]
    assert "".join(pieces) == whole.text
    for size in (18, 19, 33):
        text, before = "".join(pieces[:size]), "".join(pieces[: size - 1])
        stop = text[len(before) - 3 :]
        assert whole.text.index(stop) == len(before) - 3, "it is met here first"
        request = with_sampling(asked, max_tokens=size, stop=[stop])
        capped = drafted(pipeline, request, whole.text)
        kept = sum(len("".join(pieces[:n])) < len(before) - 3 for n in range(size))  # tokens that begin before it
        assert visible(capped) == (text.removesuffix(stop), whole.token_ids[:kept], "stop_string", kept)
        one_less = drafted(pipeline, with_sampling(request, max_tokens=size - 1), whole.text)
        assert visible(one_less) == (before, whole.token_ids[: size - 1], "length", size - 1)


def test_an_empty_prompt(pipeline: Pipeline, asked: GenerateRequest) -> None:
    empty: tuple[str | list[int], ...] = ("", [])
    for prompt in empty:
        with pytest.raises(InvalidRequestError, match="prompt: is empty"):
            pipeline.generate_sync(replace(asked, prompt=prompt, prediction="lambda"))
    assert drafted(pipeline, asked, plain(pipeline, asked).text).finish_reason == "length"


def test_a_documented_default_that_crashes(tiny_model_directory: Path) -> None:
    """Nothing is said but the model, the prompt and the text to copy."""
    with Pipeline.load(tiny_model_directory) as pipeline:
        request = GenerateRequest(prompt="The lambda expression")
        expected = plain(pipeline, request)
        assert expected.usage.completion_tokens == 256 or expected.finish_reason == "stop"
        completion = drafted(pipeline, replace(request, references=[Reference(text=expected.text)]), "")
        assert completion.drafting.by_source["references"].accepted_tokens > 0


def test_top_p_that_is_documented_and_ignored(pipeline: Pipeline, asked: GenerateRequest) -> None:
    """The smallest nucleus is the greedy choice, and a nucleus is not the whole vocabulary."""
    greedy = plain(pipeline, asked)
    hot = with_sampling(asked, temperature=2.0, seed=3)
    texts = {}
    for top_p in (1e-9, 0.5, 1.0):
        request = with_sampling(hot, top_p=top_p)
        texts[top_p] = drafted(pipeline, request, plain(pipeline, request).text).text
    assert texts[1e-9] == greedy.text
    assert len(set(texts.values())) == 3


def test_an_added_corpus_that_reports_success_and_never_drafts(
    pipeline: Pipeline, asked: GenerateRequest, tiny_model_directory: Path, tmp_path: Path
) -> None:
    expected = plain(pipeline, asked)
    source, tokenizer = tmp_path / "answer.txt", Tokenizer.load(tiny_model_directory)
    source.write_text(f"The lambda{expected.text}")
    build_index(
        [source], tmp_path / "index", tokenizer, BuildOptions(dense=False), lambda problem: pytest.fail(str(problem))
    )
    config = PipelineConfig(slots=2, context_limit=256, threads=1, numerics="strict")
    with Pipeline.load(tiny_model_directory, indexes={"added": tmp_path / "index"}, config=config) as informed:
        retrieval = Retrieval(index="added", placement="draft_only")
        completion = informed.generate_sync(replace(asked, retrieval=retrieval))
    assert [passage.document_id for passage in completion.passages] == ["answer.txt"]
    assert completion.drafting.by_source["references"].accepted_tokens > 20
    assert visible(completion) == visible(expected)


def test_a_tokenizer_larger_than_the_models_embedding(tiny_tokenizer: Any, tmp_path: Path) -> None:
    """Of the tokenizer's 512 ids the target knows 400."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=400,
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                initializer_range=0.2,
                eos_token_id=tiny_tokenizer.eos_token_id,
            )
        )
    model.save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    foreign = next(text for text in (tiny_tokenizer.decode([token]) for token in range(400, 512)) if text.isalpha())
    config = PipelineConfig(slots=2, context_limit=256, threads=1, numerics="strict")
    with Pipeline.load(tmp_path, config=config) as pipeline:
        request = GenerateRequest(prompt=list(PROMPT), sampling=Sampling(max_tokens=40, logprobs=20))
        expected = plain(pipeline, request)
        completion = drafted(pipeline, request, f"{foreign} {expected.text}{foreign}")
        assert max(completion.token_ids) < 400
        structure = Structure(kind="regex", source=f"(a|{foreign}){{8}}, {foreign}")
        shaped = replace(request, structure=structure)
        structured = drafted(pipeline, shaped, plain(pipeline, shaped).text)
        assert re.fullmatch(structure.source, structured.text)
        assert structured.finish_reason == "stop"
        with pytest.raises(InvalidRequestError, match="beyond the target's vocabulary of 400: leave it out"):
            pipeline.generate_sync(replace(request, prompt=foreign, raw=True))
