"""Runners-up: the tokens that the target thought likely, a by-product of verification.

What the target nearly wrote behind a token is what it may well write when that token comes again (Token Recycling, Luo
et al. 2024): evidence that costs no pass and no second model, and needs no text to match.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.pool import BORDER, RUNNERS, Int

_REACH = 6.0  # logits below the highest within which a token is a runner-up
_STEPS = 2.5  # evidence buckets a unit of the logit
STRONGEST, WEAKEST = 1, 16


class Runners(NamedTuple):
    """The likeliest tokens in place of each of some committed ones.

    Attributes:
        ids: int32 [tokens, RUNNERS], likeliest first; BORDER where there are fewer.
        looks: uint8 [tokens, RUNNERS], how far each is below the likeliest, STRONGEST to WEAKEST.
    """

    ids: Int
    looks: NDArray[np.uint8]


def no_runners(tokens: int) -> Runners:
    """Where the target's logits are not known."""
    return Runners(np.full((tokens, RUNNERS), BORDER, np.int32), np.zeros((tokens, RUNNERS), np.uint8))


def read_runners(logits: NDArray[np.float32]) -> Runners:
    """The runners-up in logits, float32 [tokens, vocabulary]."""
    runners = no_runners(len(logits))
    for row, ids, looks in zip(logits, *runners, strict=True):
        highest = row.max()
        near = np.flatnonzero(row > highest - _REACH)
        near = near[np.argsort(-row[near])][:RUNNERS]
        ids[: len(near)] = near
        looks[: len(near)] = STRONGEST + np.minimum((highest - row[near]) * _STEPS, WEAKEST - STRONGEST)
    return runners
