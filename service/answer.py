"""What is read off a sample's commits: text, deltas, log-probabilities, statistics, attributions."""

from refdraft.decoder.draft import Origin
from refdraft.decoder.request import Commit, DecodeStatistics, FinishReason
from refdraft.decoder.request import TokenLogprob as DecodedLogprob
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.attribution import attribute
from refdraft.service.job import Job, Sample
from refdraft.service.text import OutputText, unfinished_stop
from refdraft.service.types import (
    Attribution,
    Completion,
    Delta,
    DraftingStatistics,
    SourceStatistics,
    TokenLogprob,
    TopLogprob,
    Usage,
)

_SILENT: tuple[FinishReason, ...] = ("stop", "stop_token")  # the token that ended the output adds no text


class Answer:
    """Turns the commits of one sample to deltas and a completion."""

    def __init__(self, job: Job, sample: Sample, tokenizer: Tokenizer, min_attribution_tokens: int) -> None:
        self._job, self._sample, self._min_attribution_tokens = job, sample, min_attribution_tokens
        self._output = OutputText(tokenizer)
        self._origins: list[Origin | None] = []
        self._logprobs: list[TokenLogprob] = []
        self._sent_tokens = self._sent_text = 0
        self._finish_reason: FinishReason | None = None
        self._statistics = DecodeStatistics()

    def add(self, commit: Commit) -> Delta | None:
        """Take a commit; the delta holds what no later token can change, None if that is nothing."""
        output, stops = self._output, self._sample.stops
        self._origins += commit.origins
        self._logprobs += map(_logprob, commit.logprobs)
        silent = commit.finish_reason in _SILENT
        for token in commit.tokens[:-1] if silent else commit.tokens:
            output.push(token)
        if commit.finish_reason:
            self._finish(commit, silent=silent)
            return self._delta(len(output.text), len(output.spans))
        certain = len(output.text) - (unfinished_stop(output.text, stops.strings) if stops else 0)
        tokens = self._sent_tokens
        while tokens < len(output.spans) and output.spans[tokens][1] <= certain:
            tokens += 1
        return self._delta(certain, tokens)

    def completion(self) -> Completion:
        """The whole answer, after the last commit."""
        assert self._finish_reason is not None
        tokens = len(self._output.token_ids)
        drafted, accepted = self._statistics.drafted, self._statistics.accepted
        return Completion(
            text=self._output.text,
            token_ids=tuple(self._output.token_ids),
            finish_reason=self._finish_reason,
            usage=Usage(
                prompt_tokens=len(self._sample.decode.prompt),
                completion_tokens=tokens,
                accepted_prediction_tokens=accepted.get("prediction", 0),
                rejected_prediction_tokens=drafted.get("prediction", 0) - accepted.get("prediction", 0),
            ),
            drafting=_drafting_statistics(self._statistics, len(self._origins)),
            attributions=self._attributions(0, self._min_attribution_tokens),
            passages=self._job.passages,
            logprobs=tuple(self._logprobs[:tokens]),
            sample=self._sample.number,
            seed=self._sample.decode.sampling.seed,
        )

    def _finish(self, last: Commit, *, silent: bool) -> None:
        self._finish_reason = last.finish_reason
        self._statistics = last.statistics or DecodeStatistics()
        self._output.finish()
        if silent:
            self._output.push_silent(last.tokens[-1])
        cut = self._sample.stops.finish() if self._sample.stops else None
        if cut is not None:  # seen at a token, or in what the end made of an unfinished character
            self._output.cut(cut)
            self._finish_reason = "stop_string"

    def _delta(self, text_end: int, tokens_end: int) -> Delta | None:
        first = self._sent_tokens
        text = self._output.text[self._sent_text : text_end]
        self._sent_text, self._sent_tokens = text_end, tokens_end
        if not text and first == tokens_end:
            return None
        tokens = tuple(self._output.token_ids[first:tokens_end])
        return Delta(
            text=text,
            token_ids=tokens,
            attributions=self._attributions(first, 1, tokens_end),
            logprobs=tuple(self._logprobs[first:tokens_end]),
            sample=self._sample.number,
        )

    def _attributions(self, first: int, min_tokens: int, end: int | None = None) -> tuple[Attribution, ...]:
        window = slice(first, end)
        return tuple(
            attribute(
                self._output.text,
                self._output.token_ids[window],
                self._output.spans[window],
                self._origins[window],
                self._job.documents,
                min_tokens=min_tokens,
            )
        )


def _logprob(decoded: DecodedLogprob) -> TokenLogprob:
    top = tuple(TopLogprob(token_id=token, logprob=logprob) for token, logprob in decoded.top)
    return TokenLogprob(token_id=decoded.token, logprob=decoded.logprob, top=top)


def _drafting_statistics(statistics: DecodeStatistics, committed: int) -> DraftingStatistics:
    steps = statistics.steps
    return DraftingStatistics(
        steps=steps,
        drafted_tokens=sum(statistics.drafted.values()),
        accepted_tokens=sum(statistics.accepted.values()),
        tokens_per_step=(committed - 1) / steps if steps else 0.0,
        by_source={
            source: SourceStatistics(drafted_tokens=count, accepted_tokens=statistics.accepted.get(source, 0))
            for source, count in statistics.drafted.items()
        },
        drafter_faults=statistics.drafter_faults,
    )
