"""Penalties, biases and masks: what is done to a row of logits before a token is drawn from it."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.sampling import SamplingOptions


class Processors:
    """One output's processors, which follow it token by token.

    A row of logits is processed by what stands before its token, prompt and output alike; so along an accepted
    span every token is judged by its own prefix.

    Args:
        prompt: token ids of the prompt.
        options: what to do.
        vocabulary_size: entries of a row.
        late_ids: tokens that are masked until `min_tokens` tokens were written: those that end an output.
        min_tokens: tokens before one of `late_ids` may come.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        options: SamplingOptions,
        *,
        vocabulary_size: int,
        late_ids: Iterable[int] = (),
        min_tokens: int = 0,
    ) -> None:
        self._options, self._min_tokens = options, min_tokens
        self._penalises_output = bool(options.frequency_penalty or options.presence_penalty)
        self._repetition = options.repetition_penalty != 1.0
        self._context: list[int] = list(prompt) if options.bad_words else []
        self._seen = set(prompt) if self._repetition else set()
        self._counts: Counter[int] = Counter()
        self._length = 0  # output tokens
        self._bias = _indexed(options.logit_bias.keys()), np.array(list(options.logit_bias.values()), np.float64)
        self._late = _indexed(token for token in late_ids if token < vocabulary_size)
        self._forbidden: NDArray[np.bool_] | None = None
        if options.allowed_ids is not None:
            self._forbidden = np.ones(vocabulary_size, np.bool_)
            self._forbidden[_indexed(options.allowed_ids)] = False

    def __call__(self, logits: NDArray[np.float32]) -> NDArray[np.floating]:
        """Scores of the next token, [vocabulary]: float64, or the logits themselves where nothing changes them.

        Args:
            logits: float32 [vocabulary]; not written to.
        """
        masked = self._masked()
        if not (self._repetition or self._penalises_output or len(self._bias[0]) or masked or self._is_masking()):
            return logits
        scores = logits.astype(np.float64)
        self._penalise(scores)
        scores[self._bias[0]] += self._bias[1]
        if self._forbidden is not None:
            scores[self._forbidden] = -np.inf
        if self._length < self._min_tokens:
            scores[self._late] = -np.inf
        scores[masked] = -np.inf
        return scores

    def advance(self, token: int) -> None:
        """Take the next token of the output."""
        self._length += 1
        if self._options.bad_words:
            self._context.append(token)
        if self._repetition:
            self._seen.add(token)
        if self._penalises_output:
            self._counts[token] += 1

    def _is_masking(self) -> bool:
        return self._forbidden is not None or (self._length < self._min_tokens and len(self._late) > 0)

    def _penalise(self, scores: NDArray[np.float64]) -> None:
        if self._repetition:
            ids, penalty = _indexed(self._seen), self._options.repetition_penalty
            found = scores[ids]
            scores[ids] = np.where(found > 0, found / penalty, found * penalty)
        if self._counts:
            ids = _indexed(self._counts.keys())
            counts = np.fromiter(self._counts.values(), np.float64, len(self._counts))
            scores[ids] -= counts * self._options.frequency_penalty + self._options.presence_penalty

    def _masked(self) -> list[int]:
        """Tokens that would complete a bad word."""
        context = self._context
        return [
            word[-1]
            for word in self._options.bad_words
            if len(word) == 1 or context[1 - len(word) :] == list(word[:-1])
        ]


def _indexed(ids: Iterable[int]) -> NDArray[np.intp]:
    return np.fromiter(ids, np.intp)
