"""The positions whose tokens may come next, with their features.

At the context's end: every position behind an occurrence of its last token, longest matches first, positions around
the cursors, and the target's own runners-up behind those tokens. Further on in a draft: what carries on from there.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder import odds
from refdraft.decoder.compiled import compiled
from refdraft.decoder.cursor import (
    AFTER,
    BEFORE,
    DEPARTED,
    FOLLOWED,
    FORGOTTEN,
    POSITION,
    RUNS,
    departed,
    distance,
    doublings,
    is_near,
    latest,
    relation,
    run_bucket,
)
from refdraft.decoder.odds import Weights
from refdraft.decoder.pool import (
    CONTEXT_END,
    COPIED,
    COPY_OUTPUT,
    CURSORS,
    GUESS_START,
    LONGEST,
    OUTPUT,
    OUTPUT_START,
    RANK,
    RUNNERS,
    RUNNERS_START,
    SENTENCE_END,
    SOURCE,
    STAMP,
    TARGET,
    Int,
    Pool,
    chain_key,
    match_length,
    runner_key,
    runner_row,
    scatter,
    token_class,
)

MOST = 640
_TAKEN = (96, 64, 64)  # candidates of one chain at most, and half as many visits to positions that are none
_SKIPS = 3  # positions behind a copied token that may come next although tokens are left out
_COPYING_DECAY = 0.95


class Candidates(NamedTuple):
    """Candidates and what is known of them; `size[0]` rows are in use.

    Attributes:
        positions: int32 [MOST].
        matches: int16 [MOST], the length of the match or one of the constants of odds.py.
        features: int16 [MOST, odds.CANDIDATE_FEATURES].
        none: int16 [odds.NONE_FEATURES].
        biases: float64 [MOST], the caller's weight of the candidate's source, as a logarithm.
        shares: float64 [MOST], the chance of each.
        right: bool [MOST], scratch for learning.
        source_biases: float64 [SOURCES].
        crowd: int64 [odds.GUESSED + 1], how many candidates are matched alike.
        size: int64 [2], rows in use, and the context's end that they belong to, 0 for one within a draft.
    """

    positions: Int
    matches: NDArray[np.int16]
    features: NDArray[np.int16]
    none: NDArray[np.int16]
    biases: NDArray[np.float64]
    shares: NDArray[np.float64]
    right: NDArray[np.bool_]
    source_biases: NDArray[np.float64]
    crowd: NDArray[np.int64]
    size: NDArray[np.int64]


def new_candidates(source_biases: NDArray[np.float64]) -> Candidates:
    """Room for candidates."""
    return Candidates(
        positions=np.zeros(MOST, np.int32),
        matches=np.zeros(MOST, np.int16),
        features=np.zeros((MOST, odds.CANDIDATE_FEATURES), np.int16),
        none=np.zeros(odds.NONE_FEATURES, np.int16),
        biases=np.zeros(MOST),
        shares=np.zeros(MOST),
        right=np.zeros(MOST, np.bool_),
        source_biases=source_biases,
        crowd=np.zeros(odds.GUESSED + 1, np.int64),
        size=np.zeros(2, np.int64),
    )


@compiled
def _length_bucket(match: int) -> int:
    length = 0 if match > LONGEST else match
    return length if length < 3 else 3 if length < 6 else 4 if length < 12 else 5


@compiled
def _rank_bucket(rank: int) -> int:
    return rank if rank < 3 else 3 if rank < 5 else 4 if rank < 10 else 5


@compiled
def _add(pool: Pool, found: Candidates, position: int, match: int, cursor: int, run: int) -> None:
    """Add a position once a search; `cursor` and `run` are those of a place within a draft, 0 at the context's end."""
    row = found.size[0]
    if row == MOST or pool.marks[position] == pool.state[STAMP] or pool.tokens[position] < 0:
        return
    pool.marks[position] = pool.state[STAMP]
    owner = pool.owner[position]
    source = pool.documents[owner, SOURCE]
    if source == OUTPUT and not pool.state[COPY_OUTPUT]:
        return
    bucket = _length_bucket(match)
    if cursor > 0 and is_near(position, cursor):
        nearby, copied = 1 + position - cursor + BEFORE, RUNS + run_bucket(run, 0)
    else:
        nearby, copied = relation(pool, position)
    begun = 0 if pool.state[CONTEXT_END] == pool.state[OUTPUT_START] and cursor == 0 else 1
    features = found.features
    features[row, 0] = odds.MATCH + match
    features[row, 1] = odds.FROM + (source * 2 + begun) * odds.LENGTHS + bucket
    features[row, 2] = odds.NEARBY + nearby
    features[row, 3] = odds.COPIED_RUN + copied
    features[row, 4] = odds.DISTANCE + distance(pool, position, cursor if cursor > 0 else latest(pool))
    features[row, 5] = odds.RANKED + _rank_bucket(pool.documents[owner, RANK])
    features[row, 6] = odds.USED + min(int(pool.used[position]), 2) * odds.LENGTHS + bucket
    features[row, 8] = odds.POPULAR + min(5, doublings(pool.documents[owner, COPIED] + 1))
    features[row, 9] = odds.LOOKS + int(pool.evidence[position])
    found.positions[row], found.matches[row] = position, match
    found.biases[row] = found.source_biases[source]
    found.size[0] = row + 1


@compiled
def _add_chain(pool: Pool, found: Candidates, heads: Int, chain: int, key: int) -> None:
    """Add what a chain holds, as far as the bounds go."""
    if key < 0:
        return
    least = 1 if chain == 0 else 2 if chain == 1 else 4
    position = heads[chain, scatter(key, heads.shape[1])]
    taken, visits = 0, 0
    while position > 0 and taken < _TAKEN[chain] and visits < 2 * _TAKEN[chain]:
        visits += 1
        length = match_length(pool, position)
        if length >= least:
            _add(pool, found, position, length, 0, 0)
            taken += 1
        elif chain == 0 and token_class(pool, pool.tokens[position - 1]) == key:
            _add(pool, found, position, odds.VARIANT, 0, 0)
            taken += 1
        position = pool.older[chain, position]


@compiled
def _add_runners(pool: Pool, found: Candidates, before: int, token: int, cursor: int, run: int) -> None:
    """Add the target's runners-up behind (`before`, `token`) and behind `token` alone."""
    for match in (odds.PAIR_RUNNER, odds.RUNNER):
        key = runner_key(before if match == odds.PAIR_RUNNER else -1, token)
        row = runner_row(key)
        if pool.runner_keys[row] == key:
            first = pool.state[RUNNERS_START] + row * RUNNERS
            for position in range(first, first + RUNNERS):
                _add(pool, found, position, match, cursor, run)


@compiled
def _start(pool: Pool, found: Candidates) -> None:
    found.size[:] = 0
    pool.state[STAMP] += 1


@compiled
def _finish(pool: Pool, found: Candidates, departure: int, depth: int) -> None:
    """Add what depends on all candidates together, and the features of "none"."""
    crowd = found.crowd
    crowd[:] = 0
    longest = -1
    for row in range(found.size[0]):
        crowd[found.matches[row]] += 1
        if found.matches[row] <= LONGEST:
            longest = max(longest, int(found.matches[row]))
    for row in range(found.size[0]):
        match = int(found.matches[row])
        found.features[row, 7] = odds.CROWD + min(match, 4) * 8 + min(7, doublings(crowd[match]))
    found.none[0] = odds.NONE_LONGEST + longest + 1
    found.none[1] = odds.NONE_COPYING + min(7, int(pool.copying[0] * 8))
    found.none[2] = odds.NONE_DEPARTED + departure
    found.none[3] = odds.NONE_DEPTH + (depth if depth < 4 else 4 if depth < 6 else 5 if depth < 10 else 6)


@compiled
def find_candidates(pool: Pool, found: Candidates) -> None:
    """What may come behind the context's end."""
    if found.size[1] == pool.state[CONTEXT_END]:
        return
    _start(pool, found)
    tokens, end, state = pool.tokens, pool.state[CONTEXT_END], pool.state
    for chain in (2, 1, 0):
        key = chain_key(pool, end, chain)
        _add_chain(pool, found, pool.late_heads, chain, key)
        _add_chain(pool, found, pool.heads, chain, key)
    if end == state[OUTPUT_START]:
        _add_chain(pool, found, pool.heads, 0, SENTENCE_END)
    for index in range(min(state[CURSORS], FOLLOWED)):
        cursor = pool.cursors[index]
        owner = pool.owner[cursor[POSITION] - 1]
        for position in range(max(1, cursor[POSITION] - BEFORE), cursor[POSITION] + AFTER + 1):
            if cursor[DEPARTED] < FORGOTTEN and pool.owner[position] == owner:
                _add(pool, found, position, match_length(pool, position), 0, 0)
    if tokens[end - 1] >= 0:
        _add_runners(pool, found, tokens[end - 2], tokens[end - 1], 0, 0)
    _add(pool, found, state[GUESS_START], odds.GUESSED, 0, 0)
    _finish(pool, found, departed(pool), 0)
    found.size[1] = end


@compiled
def carry_on(
    pool: Pool,
    found: Candidates,
    positions: Int,
    matches: NDArray[np.int16],
    before: int,
    token: int,
    best: int,
    run: int,
    depth: int,
) -> None:
    """What may come behind a drafted token.

    Args:
        pool: where to look.
        found: where to put what is found.
        positions: int32, the candidates that hold `token`.
        matches: int16, how each is matched.
        before: the token before it on its path.
        token: the drafted token.
        best: the likeliest of `positions`.
        run: tokens that will have been copied in a run when `token` is accepted.
        depth: of `token` in the draft.
    """
    _start(pool, found)
    cursor = best + 1
    for index in range(len(positions)):
        position = positions[index]
        if pool.documents[pool.owner[position], SOURCE] != TARGET:
            match = int(matches[index])
            after = min(LONGEST, match + 1) if match <= LONGEST else odds.GUESSED if match == odds.GUESSED else 1
            _add(pool, found, position + 1, after, cursor, run)
    if pool.documents[pool.owner[best], SOURCE] != TARGET:
        for position in range(cursor + 1, cursor + 1 + _SKIPS):
            if pool.tokens[position - 1] < 0:
                break
            _add(pool, found, position, 0, cursor, run)
    _add_runners(pool, found, before, token, cursor, run)
    _finish(pool, found, 0, depth)


@compiled
def score(found: Candidates, weights: Weights) -> float:
    """Fill in the shares; returns the chance that none of the candidates comes next."""
    return odds.chances(weights, found.biases, found.features, found.none, found.size[0], found.shares)


@compiled
def learn_from(pool: Pool, found: Candidates, weights: Weights, none_share: float, token: int) -> int:
    """Learn that `token` came next; returns the likeliest position that holds it, 0 for none.

    The candidates must have been scored.
    """
    best, highest = 0, 0.0
    for row in range(found.size[0]):
        found.right[row] = pool.tokens[found.positions[row]] == token
        if found.right[row] and found.shares[row] > highest:
            best, highest = found.positions[row], found.shares[row]
    odds.learn(weights, found.features, found.none, found.size[0], found.shares, none_share, found.right)
    return best


@compiled
def foreseen(pool: Pool, found: Candidates, best: int) -> None:
    """Keep the share of tokens that were foreseen up to date; `best` is what `learn_from` returned."""
    hit = 0.0
    for row in range(found.size[0]):
        if best > 0 and found.positions[row] == best and found.shares[row] > 0.3:
            hit = 1.0
    pool.copying[0] = pool.copying[0] * _COPYING_DECAY + (1.0 - _COPYING_DECAY) * hit
