"""What is read off a sample's commits, however the tokens are dealt out to them."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from refdraft.decoder.request import Commit, DecodeRequest, DecodeStatistics, FinishReason, TokenLogprob
from refdraft.decoder.sampling import SamplingOptions
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.answer import Answer
from refdraft.service.attribution import Documents
from refdraft.service.job import Job, Sample
from refdraft.service.text import StopStrings
from refdraft.service.types import Completion, Delta

from .test_text import growing_text, small_tokens, specified_stop, stop_strings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer: "PreTrainedTokenizerFast") -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(tiny_tokenizer.backend_tokenizer.to_str()))


def logprobs(token_ids: Sequence[int], first: int = 0) -> tuple[TokenLogprob, ...]:
    """One for each token, different from one another."""
    return tuple(
        TokenLogprob(token=token, logit=0.0, logprob=-float(first + place), top=((token, -0.5),))
        for place, token in enumerate(token_ids)
    )


def read(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    reason: FinishReason,
    cuts: Sequence[int] = (),
    stops: StopStrings | None = None,
) -> tuple[list[Delta], Completion]:
    """Deal tokens out to commits, one for each stretch between `cuts`, and read them."""
    decode = DecodeRequest(prompt=[1, 2, 3], max_tokens=99, sampling=SamplingOptions(seed=5), stop=stops)
    sample = Sample(2, decode, stops)
    answer = Answer(Job([sample], Documents([]), ()), sample, tokenizer, 1)
    deltas = []
    places = sorted({0, len(token_ids), *(cut for cut in cuts if cut < len(token_ids))})
    for start, end in pairwise(places):
        tokens = tuple(token_ids[start:end])
        last = end == len(token_ids)
        commit = Commit(
            tokens=tokens,
            origins=(None,) * len(tokens),
            logprobs=logprobs(tokens, start),
            finish_reason=reason if last else None,
            statistics=DecodeStatistics() if last else None,
        )
        if delta := answer.add(commit):
            deltas.append(delta)
    return deltas, answer.completion()


def check_agreement(deltas: Sequence[Delta], completion: Completion, token_ids: Sequence[int]) -> None:
    """Everything of one answer is cut together, and nothing was sent that is not in it."""
    count = len(completion.token_ids)
    assert list(completion.token_ids) == list(token_ids[:count])
    assert [-logprob.logprob for logprob in completion.logprobs] == list(range(count))
    assert [logprob.token_id for logprob in completion.logprobs] == list(completion.token_ids)
    assert [token for delta in deltas for token in delta.token_ids] == list(completion.token_ids)
    assert [logprob for delta in deltas for logprob in delta.logprobs] == list(completion.logprobs)
    assert "".join(delta.text for delta in deltas) == completion.text
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (3, count)
    assert {delta.sample for delta in deltas} <= {completion.sample} == {2}
    assert completion.seed == 5


cuts = st.lists(st.integers(1, 14), max_size=6)


def test_an_answer_is_its_tokens_text_however_they_come(tokenizer: Tokenizer) -> None:
    @settings(deadline=None, max_examples=300, derandomize=True)
    @given(small_tokens(tokenizer).filter(len), cuts)
    def check(token_ids: list[int], cuts: list[int]) -> None:
        deltas, completion = read(tokenizer, token_ids, "length", cuts)
        check_agreement(deltas, completion, token_ids)
        assert completion.text == tokenizer.decode(token_ids)
        assert list(completion.token_ids) == token_ids
        assert completion.finish_reason == "length"

    check()


@pytest.mark.parametrize("reason", ["stop", "stop_token"])
def test_the_token_that_ends_an_answer_is_its_last_and_adds_no_text(tokenizer: Tokenizer, reason: FinishReason) -> None:
    @settings(deadline=None, max_examples=200, derandomize=True)
    @given(small_tokens(tokenizer), cuts, st.sampled_from(["a", " ", "<|im_end|>"]))
    def check(token_ids: list[int], cuts: list[int], end: str) -> None:
        ended = [*token_ids, int(tokenizer.encode(end)[0])]
        deltas, completion = read(tokenizer, ended, reason, cuts)
        check_agreement(deltas, completion, ended)
        assert completion.text == tokenizer.decode(token_ids)
        assert list(completion.token_ids) == ended
        assert completion.finish_reason == reason

    check()


def test_stop_strings_cut_text_ids_and_logprobs_together(tokenizer: Tokenizer) -> None:
    @settings(deadline=None, max_examples=500, derandomize=True)
    @given(small_tokens(tokenizer).filter(len), stop_strings, st.integers(0, 6), cuts, st.booleans())
    def check(token_ids: list[int], strings: list[str], min_tokens: int, cuts: list[int], silent: bool) -> None:
        stops = StopStrings(tokenizer, strings, min_tokens)
        written, cut = specified_stop(tokenizer, token_ids, strings, min_tokens)
        ended = next((count for count, token in enumerate(token_ids, start=1) if stops(token)), None)
        whole = growing_text(tokenizer, token_ids[:written])[-1]
        reason: FinishReason = "stop_string" if ended else "length"
        tokens = token_ids[:ended]
        if silent and not ended:  # the engine asks for stop strings only where no token ends the output
            reason, tokens = "stop", [*token_ids, int(tokenizer.encode("<|im_end|>")[0])]
        deltas, completion = read(tokenizer, tokens, reason, cuts, stops)
        check_agreement(deltas, completion, tokens)
        assert completion.text == whole[:cut]
        assert completion.finish_reason == (reason if cut is None else "stop_string")
        if cut is None:
            assert len(completion.token_ids) == len(tokens)

    check()


def test_an_unknown_id_is_no_text(tokenizer: Tokenizer) -> None:
    first, second = tokenizer.encode("ab").tolist()[0], 100_000
    deltas, completion = read(tokenizer, [first, second, first], "length", [1, 2])
    check_agreement(deltas, completion, [first, second, first])
    assert completion.text == tokenizer.decode([first, first])
    assert completion.token_ids == (first, second, first)
