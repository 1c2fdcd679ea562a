"""The draft model as a source: here the tiny model guesses for itself, or for a target with other weights."""

import gc

import pytest
import torch

from refdraft.decoder.draft_model import DraftModel
from refdraft.decoder.drafter import DrafterOptions
from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.request import DecodeRequest, DecodeStatistics
from refdraft.decoder.sampling import SamplingOptions
from refdraft.decoder.target import Target
from tests.decoder.conftest import Decoder, Load, Result
from tests.decoder.drafts import PROMPT

CONFIG = EngineConfig(max_draft_tokens=8, prefill_chunk=16)
MODEL_ALONE = DrafterOptions(copy_prompt=False, copy_output=False, follow_target=False)


def run(target: Target, draft_model: DraftModel, *requests: DecodeRequest) -> list[Result]:
    engine = Engine(target, CONFIG, draft_model=draft_model)
    results = [Result() for _ in requests]
    for request, result in zip(requests, results, strict=True):
        engine.submit(engine.prepare(request, engine.build_drafter(request), result.listen))
    while engine.busy:
        engine.step()
    return results


def statistics(result: Result) -> DecodeStatistics:
    assert result.statistics is not None
    return result.statistics


@pytest.fixture
def draft_model(load_tiny: Load) -> DraftModel:
    return DraftModel(load_tiny(slots=2))


def test_a_model_that_thinks_alike_is_believed(decoder: Decoder, draft_model: DraftModel) -> None:
    for sampling in (SamplingOptions(), SamplingOptions(temperature=0.8, seed=4)):
        request = DecodeRequest(PROMPT, 60, sampling=sampling, drafting=MODEL_ALONE)
        (result,) = run(decoder.target, draft_model, request)
        assert result.output == decoder.plain(request).output
    greedy = DecodeRequest(PROMPT, 60, drafting=MODEL_ALONE)
    (result,) = run(decoder.target, draft_model, greedy)
    assert statistics(result).drafted.keys() <= {"model"}


def test_a_model_that_knows_nothing_changes_no_output(decoder: Decoder, draft_model: DraftModel) -> None:
    torch.manual_seed(0)
    for parameter in draft_model.model.model.parameters():
        parameter.data.normal_(0, 0.3)
    requests = [DecodeRequest((*PROMPT, last), 50) for last in (7, 8, 9)]  # more than the draft model has room for
    for request, result in zip(requests, run(decoder.target, draft_model, *requests), strict=True):
        assert result.output == decoder.plain(request).output
        assert statistics(result).drafter_faults == 0


def test_rows_are_given_back(draft_model: DraftModel) -> None:
    taken = [draft_model.open(PROMPT) for _ in range(2)]
    assert draft_model.open(PROMPT) is None
    taken.clear()
    gc.collect()
    assert draft_model.open(PROMPT) is not None


def test_it_guesses_what_it_would_write_itself(decoder: Decoder, draft_model: DraftModel) -> None:
    ids = decoder.plain(DecodeRequest(PROMPT, 30)).ids
    guesser = draft_model.open(PROMPT)
    assert guesser is not None
    guessed = 0
    for position in range(0, len(ids) - 4, 2):
        tokens, looks = guesser.guess()
        assert tokens.tolist() == ids[position : position + len(tokens)]
        assert len(looks) == len(tokens)
        guessed += len(tokens)
        guesser.observe(ids[position : position + 2])
    assert guesser.guess()[0].tolist() is not None
    guesser.observe([5] * 60)
    assert guesser.guess()[0].tolist() == [], "it keeps quiet where its context ends"
