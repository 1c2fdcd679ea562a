"""How likely a candidate is to be what the target writes next.

One of the candidates' tokens comes next, or none does. Each candidate position has a score, the sum of a weight for
each of its features (how long its match is, where it lies to what was copied last, from which source it is, ...);
"none" has one too, and a softmax over all of them gives the chances. Positions with the same token add up, so what
stands in several places counts as more likely. It is a pointer network (Vinyals et al. 2015) with a log-linear score.

The weights start from a prior fitted on recorded answers (benchmarks/fit_prior.py) and go on learning from every token
that is committed, whether or not it was drafted, by AdaGrad (Duchi et al. 2011) with decay.
"""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.compiled import compiled
from refdraft.decoder.cursor import DISTANCES, FORGOTTEN, RELATIONS, RUNS
from refdraft.decoder.pool import LONGEST, SOURCES

# What a candidate is matched by: 0 to LONGEST tokens, or one of these.
VARIANT, PAIR_RUNNER, RUNNER, GUESSED = LONGEST + 1, LONGEST + 2, LONGEST + 3, LONGEST + 4
LENGTHS = 6  # buckets of match length that are told apart together with another feature
DEPTHS = 8  # buckets of depth in the draft
EVIDENCE = 17

# Groups of features and their sizes. A candidate has one feature of each of the first, "none" one of each of the last.
_CANDIDATE_GROUPS = {
    "match": LONGEST + 5,
    "source": len(SOURCES) * 2 * LENGTHS,  # by whether the output has begun, by match length
    "cursor": RELATIONS,
    "run": 2 * RUNS,  # at the context's end, and further on in a draft
    "distance": DISTANCES,
    "rank": 6,
    "used": 3 * LENGTHS,
    "crowd": 5 * 8,  # candidates with as long a match
    "document": 6,  # tokens copied from it
    "evidence": EVIDENCE,
}
_NONE_GROUPS = {"longest": LONGEST + 2, "copying": 8, "departed": FORGOTTEN, "depth": DEPTHS}
_GROUPS = _CANDIDATE_GROUPS | _NONE_GROUPS
_STARTS = dict(zip(_GROUPS, np.cumsum([0, *_GROUPS.values()]).tolist(), strict=False))
MATCH, FROM, NEARBY, COPIED_RUN, DISTANCE, RANKED, USED, CROWD, POPULAR, LOOKS = (
    _STARTS[name] for name in _CANDIDATE_GROUPS
)
NONE_LONGEST, NONE_COPYING, NONE_DEPARTED, NONE_DEPTH = (_STARTS[name] for name in _NONE_GROUPS)
CANDIDATE_FEATURES, NONE_FEATURES = len(_CANDIDATE_GROUPS), len(_NONE_GROUPS)
WEIGHTS = sum(_GROUPS.values())

RATE = 0.1  # of learning
_DECAY = 0.9998  # weight left to a squared gradient at the next update of its weight
_PRIOR_SQUARE = 1.0  # squared gradients that the prior counts for

Floats = NDArray[np.float64]


class Weights(NamedTuple):
    """A weight for each feature, and the decayed sum of its squared gradients: float64 [WEIGHTS] each."""

    values: Floats
    squares: Floats


class SurvivalOdds:
    """The weights that all requests of a target share, learn from and teach."""

    def __init__(self, weights: Weights | None = None) -> None:
        self.weights = weights or prior()


def prior() -> Weights:
    """The weights before anything was observed; the caller's own to change."""
    return Weights(_read_prior().copy(), np.full(WEIGHTS, _PRIOR_SQUARE))


def save_prior(values: Floats, path: Path) -> None:
    """Write weights as `prior` reads them."""
    groups = {name: values[start : start + _GROUPS[name]].round(2).tolist() for name, start in _STARTS.items()}
    path.write_text(json.dumps(groups, indent=1) + "\n", encoding="utf-8")


PRIOR_FILE = Path(__file__).with_name("prior.json")


@cache
def _read_prior() -> Floats:
    groups = json.loads(PRIOR_FILE.read_text(encoding="utf-8"))
    return np.array([weight for name in _GROUPS for weight in groups[name]])


@compiled
def chances(
    weights: Weights, biases: Floats, features: NDArray[np.int16], none: NDArray[np.int16], count: int, out: Floats
) -> float:
    """Put the chance of each candidate into `out`, and return that of none of them.

    Args:
        weights: see `Weights`.
        biases: float64 [candidates], added to the scores.
        features: int16 [candidates, CANDIDATE_FEATURES], of which the first `count` rows are used.
        none: int16 [NONE_FEATURES].
        count: candidates.
        out: float64 [candidates].
    """
    values = weights.values
    none_score = 0.0
    for feature in none:
        none_score += values[feature]
    highest = none_score
    for index in range(count):
        score = biases[index]
        for group in range(CANDIDATE_FEATURES):
            score += values[features[index, group]]
        out[index] = score
        highest = max(highest, score)
    none_share = np.exp(none_score - highest)
    total = none_share
    for index in range(count):
        out[index] = np.exp(out[index] - highest)
        total += out[index]
    for index in range(count):
        out[index] /= total
    return float(none_share / total)


@compiled
def _update(weights: Weights, feature: int, gradient: float) -> None:
    weights.squares[feature] = weights.squares[feature] * _DECAY + gradient * gradient + (1 - _DECAY) * _PRIOR_SQUARE
    weights.values[feature] += RATE * gradient / np.sqrt(weights.squares[feature])


@compiled
def learn(
    weights: Weights,
    features: NDArray[np.int16],
    none: NDArray[np.int16],
    count: int,
    shares: Floats,
    none_share: float,
    right: NDArray[np.bool_],
) -> None:
    """Raise the chance of the candidates that were right, or of none where all were wrong.

    Args:
        weights: changed in place.
        features: as for `chances`.
        none: as for `chances`.
        count: as for `chances`.
        shares: what `chances` put out.
        none_share: what it returned.
        right: bool [candidates], those whose token came next.
    """
    held = 0.0
    for index in range(count):
        if right[index]:
            held += shares[index]
    for index in range(count):
        gradient = -shares[index]
        if right[index]:
            gradient += shares[index] / held
        if abs(gradient) > 1e-5:
            for group in range(CANDIDATE_FEATURES):
                _update(weights, features[index, group], gradient)
    gradient = -none_share if held > 0 else 1.0 - none_share
    for feature in none:
        _update(weights, feature, gradient)
