"""The plainest decoder one can write, from the definitions alone; it shares no code with what it judges.

Every token costs a full forward pass without a cache, scores are Python floats (float64), penalties and masks are
counted anew from the whole context, and the random numbers come from Philox as its paper writes it. Of `decoder/`
only the data classes are read that describe what is asked.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.request import DecodeRequest
from refdraft.decoder.sampling import SamplingOptions
from refdraft.errors import InvalidRequestError

Forward = Callable[[Sequence[int]], NDArray[np.float32]]  # context -> logits behind it, float32 [vocabulary]

MASKED = -math.inf
_WORD = 2**64 - 1


@dataclass(frozen=True)
class Logprob:
    """What the target thinks of a written token before any option, and its likeliest tokens."""

    token: int
    logit: float
    logprob: float
    top: list[tuple[int, float]]


@dataclass
class Outcome:
    """All that a user can see of one output; `reason` or `error` says why it ended."""

    ids: list[int] = field(default_factory=list)
    reason: str | None = None
    error: type[Exception] | None = None
    logprobs: list[Logprob] = field(default_factory=list)


def decode(request: DecodeRequest, forward: Forward, context_limit: int) -> Outcome:
    """Write the output of a request, token by token.

    Args:
        request: what is asked; its `stop` and `constraint` must be fresh, and are used up.
        forward: the target.
        context_limit: tokens of prompt and output together.
    """
    outcome = Outcome()
    while outcome.reason is None:
        logits = [float(logit) for logit in forward([*request.prompt, *outcome.ids])]
        if any(math.isnan(logit) for logit in logits) or math.isinf(max(logits)):
            outcome.error = FloatingPointError
            break
        token = pick(scores(logits, request, outcome.ids), request.sampling, len(request.prompt) + len(outcome.ids))
        if token is None:
            outcome.error = InvalidRequestError
            break
        outcome.ids.append(token)
        if request.top_logprobs is not None:
            outcome.logprobs.append(logprob(logits, token, request.top_logprobs))
        if request.constraint:
            request.constraint.advance(token)
        outcome.reason = finish_reason(request, outcome.ids, context_limit)
    return outcome


def finish_reason(request: DecodeRequest, output: Sequence[int], context_limit: int) -> str | None:
    """Why the output ends with its last token; None if it goes on."""
    if output[-1] in request.eos_ids:
        return "stop"
    if output[-1] in request.stop_ids:
        return "stop_token"
    if request.stop and request.stop(output[-1]):
        return "stop_string"
    if len(output) == request.max_tokens:
        return "length"
    if len(request.prompt) + len(output) == context_limit:
        return "context_limit"
    return None


def scores(logits: Sequence[float], request: DecodeRequest, output: Sequence[int]) -> list[float]:
    """The logits after penalties, biases and masks."""
    options, context, result = request.sampling, [*request.prompt, *output], list(logits)
    for token in set(context):
        penalty = options.repetition_penalty
        result[token] = result[token] / penalty if result[token] > 0 else result[token] * penalty
    for token in set(output):
        result[token] -= options.frequency_penalty * output.count(token)
        result[token] -= options.presence_penalty
    for token, bias in options.logit_bias.items():
        result[token] += bias
    for *before, last in options.bad_words:
        if context[len(context) - len(before) :] == before:
            result[last] = MASKED
    for token in range(len(result)):
        if options.allowed_ids is not None and token not in options.allowed_ids:
            result[token] = MASKED
        if len(output) < request.min_tokens and token in request.eos_ids | request.stop_ids:
            result[token] = MASKED
    if request.constraint:
        for token, allowed in enumerate(request.constraint.allowed()):
            if not allowed:
                result[token] = MASKED
    return result


def pick(scores: Sequence[float], options: SamplingOptions, position: int) -> int | None:
    """The token at an absolute position; None if every score is masked."""
    ranked = sorted((t for t in range(len(scores)) if scores[t] > MASKED), key=lambda t: (-scores[t], t))
    if not ranked:
        return None
    best = ranked[0]
    if options.temperature < 1e-5:
        return best
    if options.top_k > 0:
        ranked = ranked[: options.top_k]
    weights = {token: math.exp((scores[token] - scores[best]) / options.temperature) for token in ranked}
    if options.top_p < 1.0:
        wanted, kept = options.top_p * math.fsum(weights.values()), 0
        while math.fsum(weights[token] for token in ranked[:kept]) < wanted:
            kept += 1
        ranked = ranked[: max(kept, 1)]
    ranked = [token for token in ranked if weights[token] >= options.min_p * weights[best]]
    threshold = uniform(options.seed, position) * math.fsum(weights[token] for token in ranked)
    mass = 0.0
    for token in sorted(ranked):
        mass += weights[token]
        if mass > threshold:
            return token
    raise AssertionError("the threshold is below the whole mass")


def logprob(logits: Sequence[float], token: int, top: int) -> Logprob:
    """Log softmax of the target's own logits."""
    normaliser = max(logits) + math.log(math.fsum(math.exp(logit - max(logits)) for logit in logits))
    ranked = sorted((t for t in range(len(logits)) if logits[t] > MASKED), key=lambda t: (-logits[t], t))
    likeliest = [(t, logits[t] - normaliser) for t in ranked[:top]]
    return Logprob(token, logits[token], logits[token] - normaliser, likeliest)


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the token at a position."""
    return (philox((position + 1, 0, 0, 0), (seed, 0))[0] >> 11) / 2**53


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x64-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3; SC 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c0, 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * c2, 2**64)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & _WORD, (k1 + 0xBB67AE8584CAA73B) & _WORD
    return c0, c1, c2, c3
