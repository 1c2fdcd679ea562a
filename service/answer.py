"""What is read off a request's commits: text, deltas, statistics, attributions."""

from collections.abc import Sequence
from dataclasses import dataclass

from refdraft.decoder.draft import Origin
from refdraft.decoder.request import Commit, DecodeRequest, DecodeStatistics, FinishReason
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.attribution import Document, attribute
from refdraft.service.text import OutputText, find_stop, unfinished_stop
from refdraft.service.types import (
    Attribution,
    Completion,
    Delta,
    DraftingStatistics,
    Passage,
    SourceStatistics,
    Usage,
)


@dataclass(frozen=True, slots=True)
class Job:
    """A request, ready for the engine, and what its answer will refer to."""

    decode: DecodeRequest
    documents: Sequence[Document]
    passages: tuple[Passage, ...]
    stops: tuple[str, ...]
    seed: int


class Answer:
    """Turns the commits of one request to deltas and a completion."""

    def __init__(self, job: Job, tokenizer: Tokenizer, min_attribution_tokens: int) -> None:
        self._job, self._min_attribution_tokens = job, min_attribution_tokens
        self._output = OutputText(tokenizer)
        self._origins: list[Origin | None] = []
        self._sent_tokens = self._sent_text = 0
        self._finish_reason: FinishReason | None = None
        self._statistics = DecodeStatistics()

    def add(self, commit: Commit) -> Delta | None:
        """Take a commit; the delta holds what no later token can change, None if that is nothing."""
        output = self._output
        for token in commit.tokens:
            output.push(token)
        self._origins += commit.origins
        if commit.finish_reason:
            self._finish_reason = commit.finish_reason
            self._statistics = commit.statistics or DecodeStatistics()
            output.finish()
            end = find_stop(output.text, self._job.stops)
            if end < len(output.text):  # a stop string may also come to light with the last, unfinished character
                output.cut(end)
                self._finish_reason = "stop_string"
            return self._delta(len(output.text), len(output.spans))
        certain = len(output.text) - unfinished_stop(output.text, self._job.stops)
        tokens = self._sent_tokens
        while tokens < len(output.spans) and output.spans[tokens][1] <= certain:
            tokens += 1
        return self._delta(certain, tokens)

    def completion(self) -> Completion:
        """The whole answer, after the last commit."""
        assert self._finish_reason is not None
        drafted, accepted = self._statistics.drafted, self._statistics.accepted
        return Completion(
            text=self._output.text,
            token_ids=tuple(self._output.token_ids),
            finish_reason=self._finish_reason,
            usage=Usage(
                prompt_tokens=len(self._job.decode.prompt),
                completion_tokens=len(self._output.token_ids),
                accepted_prediction_tokens=accepted.get("prediction", 0),
                rejected_prediction_tokens=drafted.get("prediction", 0) - accepted.get("prediction", 0),
            ),
            drafting=_drafting_statistics(self._statistics, len(self._origins)),
            attributions=self._attributions(0, self._min_attribution_tokens),
            passages=self._job.passages,
            seed=self._job.seed,
        )

    def _delta(self, text_end: int, tokens_end: int) -> Delta | None:
        first = self._sent_tokens
        text = self._output.text[self._sent_text : text_end]
        self._sent_text, self._sent_tokens = text_end, tokens_end
        if not text and first == tokens_end:
            return None
        tokens = tuple(self._output.token_ids[first:tokens_end])
        return Delta(text=text, token_ids=tokens, attributions=self._attributions(first, 1, tokens_end))

    def _attributions(self, first: int, min_tokens: int, end: int | None = None) -> tuple[Attribution, ...]:
        window = slice(first, end)
        return tuple(
            attribute(
                self._output.text,
                self._output.token_ids[window],
                self._output.spans[window],
                self._origins[window],
                self._job.documents,
                source="references",
                min_tokens=min_tokens,
            )
        )


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
