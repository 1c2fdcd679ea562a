"""One request's sampler: from the target's logits to a token, with all that a request can ask of the choice."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.processors import Processors
from refdraft.decoder.request import DecodeRequest, TokenLogprob
from refdraft.decoder.sampling import choose, top_ids
from refdraft.errors import InvalidRequestError


class Sampler:
    """Chooses the tokens of one output, in order: `choose` one, `advance` over it, and so on.

    Args:
        request: its prompt, sampling options, ends, constraint and wish for log-probabilities.
        vocabulary_size: entries of a row of logits.

    Raises:
        InvalidRequestError: an option names a token id beyond the vocabulary.
    """

    def __init__(self, request: DecodeRequest, vocabulary_size: int) -> None:
        _check_ids(request, vocabulary_size)
        self._options, self._constraint = request.sampling, request.constraint
        self._top_logprobs = request.top_logprobs
        self._position = len(request.prompt)
        self._first = self._position
        self._processors = Processors(
            request.prompt,
            request.sampling,
            vocabulary_size=vocabulary_size,
            late_ids=request.eos_ids | request.stop_ids,
            min_tokens=request.min_tokens,
        )

    def choose(self, logits: NDArray[np.float32]) -> int:
        """The next token.

        Args:
            logits: float32 [vocabulary], the target's own.

        Raises:
            FloatingPointError: a logit is NaN or positive infinity, or all are negative infinity.
            InvalidRequestError: what the request allows leaves no token.
        """
        if not np.isfinite(logits.max()):  # NaN is a maximum, too
            raise FloatingPointError(
                f"no token can be chosen at position {self._position}: of the target's {len(logits)} logits"
                f" {np.isnan(logits).sum()} are NaN and {np.isposinf(logits).sum()} infinite;"
                " the weights are damaged or too large for their type (float16 overflows)"
            )
        scores = self._processors(logits)
        if self._constraint is not None:
            scores = np.where(self._constraint.allowed(), scores, -np.inf)
        if not np.isfinite(scores.max()):
            raise InvalidRequestError(
                f"no token is left at output token {self._position - self._first + 1}: what is allowed, forbidden"
                " and required contradict one another",
                field="sampling",
            )
        return choose(scores, self._options, self._position)

    def logprob(self, logits: NDArray[np.float32], token: int) -> TokenLogprob | None:
        """What the target itself thinks of a token, before any option; None where nobody asked."""
        return None if self._top_logprobs is None else log_probability(logits, token, self._top_logprobs)

    def advance(self, token: int) -> None:
        """Take the token that was committed."""
        self._position += 1
        self._processors.advance(token)
        if self._constraint is not None:
            self._constraint.advance(token)


def log_probability(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    """Natural logarithms of the softmax of `logits`, float32 [vocabulary], for `token` and the `top` likeliest.

    Tokens of probability 0 are never among the likeliest; among equals the lowest id comes first.
    """
    best = float(logits.max())
    normaliser = best + float(np.log(np.exp(logits.astype(np.float64) - best).sum()))
    ids = top_ids(logits, top) if top else np.arange(0)
    ids = np.arange(len(logits)) if ids is None else ids
    ranked = ids[np.argsort(-logits[ids], kind="stable")]
    likeliest = tuple((int(i), float(logits[i]) - normaliser) for i in ranked if logits[i] > -np.inf)
    return TokenLogprob(token, float(logits[token]), float(logits[token]) - normaliser, likeliest)


def _check_ids(request: DecodeRequest, vocabulary_size: int) -> None:
    options = request.sampling
    named: dict[str, Iterable[int]] = {
        "logit_bias": options.logit_bias,
        "bad_words": (token for word in options.bad_words for token in word),
        "allowed_ids": options.allowed_ids or (),
    }
    for name, ids in named.items():
        for token in ids:
            if not 0 <= token < vocabulary_size:
                raise InvalidRequestError(
                    f"token id {token} is beyond the target's vocabulary of {vocabulary_size}", field=f"sampling.{name}"
                )
