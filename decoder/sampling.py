"""How a token is drawn from scores: deterministic in (scores, options, seed, position).

Sampling inverts the cumulative distribution of the truncated probabilities, in order of token id, at one
uniform number that depends on nothing but the seed and the token's absolute position. So a request draws the
same token at a position whether or not one was drafted there. What comes before, penalties and masks, is
`processors.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

GREEDY_TEMPERATURE = 1e-5  # below it the highest score is taken, the lowest id among equals
_SHORTLIST = 1024  # a nucleus is nearly always smaller than this; sorting the whole vocabulary costs 10 x more


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the target's logits become a token. The defaults change nothing and take the highest logit.

    The logits are processed in the order of these fields, each step seeing what the one before left.

    Attributes:
        repetition_penalty: of every token in prompt or output a positive logit is divided by it, another
            multiplied (Keskar et al. 2019, CTRL); 1 is none, must be positive.
        frequency_penalty: subtracted once for every time that a token occurs in the output.
        presence_penalty: subtracted once from every token that occurs in the output.
        logit_bias: added to the logits of these token ids.
        bad_words: sequences of token ids, none empty, that prompt and output together never complete: a
            sequence's last token is masked where the ones before it stand.
        allowed_ids: all other tokens are masked; None allows all.
        temperature: divides the logits; below `GREEDY_TEMPERATURE` the highest wins.
        top_k: keeps the highest k; 0 keeps all.
        top_p: keeps the smallest set of highest probabilities that holds this mass (Holtzman et al. 2019).
        min_p: keeps what has at least this share of the highest probability (Nguyen et al. 2024).
        seed: in [0, 2**64).
    """

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[Sequence[int]] = ()
    allowed_ids: frozenset[int] | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides the token at `position` of a request seeded with `seed`.

    The upper 53 bits of the first 64-bit word of Philox4x64-10 (Salmon et al. 2011) under key (seed, 0) and
    counter (position + 1, 0, 0, 0): numpy counts up before it draws.
    """
    word = int(np.random.Philox(key=seed, counter=position).random_raw())
    return (word >> 11) * 2.0**-53


def choose(scores: NDArray[np.floating], options: SamplingOptions, position: int) -> int:
    """The token at `position`, by temperature, top_k, top_p, min_p and seed.

    Args:
        scores: floats [vocabulary], processed logits, of which at least one is finite and none NaN or positive
            infinity; negative infinity is never drawn.
        options: how to sample.
        position: absolute position of the token to choose, the prompt's first token being 0.

    Returns:
        A token id. Among equal scores the lowest id comes first, in greedy choice, top_k and top_p alike.
    """
    best = int(scores.argmax())
    if options.temperature < GREEDY_TEMPERATURE:
        return best
    scaled = (scores.astype(np.float64) - float(scores[best])) / options.temperature
    ids = top_ids(scaled, options.top_k)
    weights = np.exp(scaled if ids is None else scaled[ids])
    if options.top_p < 1.0:
        kept = _nucleus(weights, options.top_p)
        ids, weights = (kept if ids is None else ids[kept]), weights[kept]
    if options.min_p > 0.0:
        weights = np.where(weights >= options.min_p, weights, 0.0)  # the highest weight is 1
    cumulative = np.cumsum(weights)
    index = int(np.searchsorted(cumulative, uniform(options.seed, position) * cumulative[-1], side="right"))
    index = min(index, int(np.flatnonzero(weights)[-1]))
    return index if ids is None else int(ids[index])


def top_ids(scores: NDArray[np.floating], k: int) -> NDArray[np.intp] | None:
    """Ids of the k highest of float scores [vocabulary], ascending, the lowest among equals; None keeps all."""
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
