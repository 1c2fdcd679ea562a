"""How a token is chosen from the target's logits: deterministic in (logits, options, seed, position).

Sampling inverts the cumulative distribution of the processed probabilities, in order of token id, at one
uniform number that depends on nothing but the seed and the token's absolute position. So a request draws the
same token at a position whether or not one was drafted there.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SHORTLIST = 1024  # a nucleus is nearly always smaller than this; sorting the whole vocabulary costs 10 x more


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """temperature 0 is greedy; top_k 0 and top_p 1 keep every token. Applied in that order."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0  # in [0, 2**64)


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the token at `position` of a request seeded with `seed`.

    The upper 53 bits of the first 64-bit word of Philox4x64-10 (Salmon et al. 2011) under key (seed, 0) and
    counter (position + 1, 0, 0, 0): numpy counts up before it draws.
    """
    word = int(np.random.Philox(key=seed, counter=position).random_raw())
    return (word >> 11) * 2.0**-53


def choose(logits: NDArray[np.float32], options: SamplingOptions, position: int) -> int:
    """The target's token at `position`.

    Args:
        logits: float32 [vocabulary].
        options: how to sample.
        position: absolute position of the token to choose, the prompt's first token being 0.

    Returns:
        A token id. Among equal logits the lowest id comes first, in greedy choice, top_k and top_p alike.

    Raises:
        FloatingPointError: a logit is NaN or positive infinity, or all are negative infinity.
    """
    best = int(logits.argmax())
    if not np.isfinite(logits[best]):  # argmax finds a NaN before any number
        raise FloatingPointError(f"the target's logits at position {position} hold no finite maximum")
    if options.temperature == 0.0:
        return best
    # A temperature near zero may overflow: then the scaled gaps are infinite, and the choice is greedy.
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - float(logits[best])) / options.temperature
    ids = _top_k(scaled, options.top_k)
    weights = np.exp(scaled if ids is None else scaled[ids])
    if options.top_p < 1.0:
        kept = _nucleus(weights, options.top_p)
        ids, weights = (kept if ids is None else ids[kept]), weights[kept]
    cumulative = np.cumsum(weights)
    index = int(np.searchsorted(cumulative, uniform(options.seed, position) * cumulative[-1], side="right"))
    index = min(index, len(weights) - 1)
    return index if ids is None else int(ids[index])


def _top_k(scores: NDArray[np.float64], k: int) -> NDArray[np.intp] | None:
    """Ids of the k highest scores in ascending order, the lowest ids among equals; None keeps all."""
    if not 0 < k < len(scores):
        return None
    threshold = np.partition(scores, -k)[-k]
    above = np.flatnonzero(scores > threshold)
    equal = np.flatnonzero(scores == threshold)[: k - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.intp]:
    """Indices, ascending, of the smallest set of highest weights that holds `top_p` of the whole weight."""
    wanted = top_p * weights.sum()
    candidates = np.arange(len(weights))
    if len(weights) > _SHORTLIST:
        threshold = np.partition(weights, -_SHORTLIST)[-_SHORTLIST]
        shortlist = np.flatnonzero(weights > threshold)
        if weights[shortlist].sum() > wanted * (1 + 1e-9):  # surely inside, whatever the order of summation
            candidates = shortlist
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    size = int(np.searchsorted(np.cumsum(weights[order]), wanted, side="left")) + 1
    return np.sort(order[:size])
