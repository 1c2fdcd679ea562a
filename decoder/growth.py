"""Growing a draft: the tree of likeliest continuations, node by node.

Best-first: of all continuations seen so far the likeliest becomes the next node, and what carries on behind it joins
them. So the first n nodes are the n likeliest for every n, a parent comes before its children, and positions with the
same continuation share their nodes. (SpecInfer, Miao et al. 2023, verifies such trees; EAGLE-2, Li et al. 2024, grows
them by a draft model's confidence.)
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.candidates import MOST, Candidates, carry_on, find_candidates, foreseen, learn_from, score
from refdraft.decoder.compiled import compiled
from refdraft.decoder.cursor import is_near, latest, move_on, run_length
from refdraft.decoder.odds import Weights
from refdraft.decoder.pool import CONTEXT_END, LONGEST, RANK, Int, Pool, append_output, keep_runners, scatter

MOST_NODES = 64
_FLOOR = 0.001  # continuations less likely than this are not kept
_BRANCHES = 2048
_STORE_SIZE = 1 << 14

# Columns of Growth.branches and Growth.groups.
_TOKEN, _PARENT, _BEST, _CREDITED, _RUN, _DEPTH, _STORE, _SIZE = range(8)

# What Growth.sizes counts.
_GROWN, _BRANCHED, _HEAPED, _STORED = range(4)


class Growth(NamedTuple):
    """A draft being grown.

    Attributes:
        nodes: int32 [MOST_NODES], the branch that became each node.
        branches: int32 [_BRANCHES, 8], the continuations seen: token, parent node, likeliest position, position that is
            credited with the token, length of the run, depth, and where its positions begin in the store and how many
            they are.
        survivals: float64 [_BRANCHES], the chance of each branch that it holds and all before it do.
        heap: int32 [_BRANCHES], branches that are no nodes yet, likeliest at the root.
        positions, matches: int32 and int16 [_STORE_SIZE], the store.
        groups, shares: int32 [MOST, 8] and float64 [MOST], candidates by token: a row of a branch to be, of candidates
            in place of positions, and its chance.
        members: int16 [MOST], the group of each candidate.
        slots: int16 [2048], a hash table from tokens to groups.
        sizes: int64 [4], nodes, branches, heap and store in use.
    """

    nodes: Int
    branches: Int
    survivals: NDArray[np.float64]
    heap: Int
    positions: Int
    matches: NDArray[np.int16]
    groups: Int
    shares: NDArray[np.float64]
    members: NDArray[np.int16]
    slots: NDArray[np.int16]
    sizes: NDArray[np.int64]


def new_growth() -> Growth:
    """Room for a draft."""
    return Growth(
        nodes=np.zeros(MOST_NODES, np.int32),
        branches=np.zeros((_BRANCHES, 8), np.int32),
        survivals=np.zeros(_BRANCHES),
        heap=np.zeros(_BRANCHES, np.int32),
        positions=np.zeros(_STORE_SIZE, np.int32),
        matches=np.zeros(_STORE_SIZE, np.int16),
        groups=np.zeros((MOST, 8), np.int32),
        shares=np.zeros(MOST),
        members=np.zeros(MOST, np.int16),
        slots=np.zeros(2048, np.int16),
        sizes=np.zeros(4, np.int64),
    )


@compiled
def _push(growth: Growth, branch: int) -> None:
    heap, survivals = growth.heap, growth.survivals
    place = growth.sizes[_HEAPED]
    growth.sizes[_HEAPED] += 1
    while place > 0 and survivals[heap[(place - 1) // 2]] < survivals[branch]:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = branch


@compiled
def _pop(growth: Growth) -> int:
    heap, survivals = growth.heap, growth.survivals
    top = int(heap[0])
    growth.sizes[_HEAPED] -= 1
    size = growth.sizes[_HEAPED]
    last, place = heap[size], 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and survivals[heap[child + 1]] > survivals[heap[child]]:
            child += 1
        if survivals[heap[child]] <= survivals[last]:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = last
    return top


@compiled
def _claim(pool: Pool, found: Candidates, row: int, cursor: int) -> int:
    """How good a candidate's claim is to be the place that its token is copied from.

    A copy goes on where it was; else the longer match has it; else the document that was ranked better.
    """
    position, match = found.positions[row], int(found.matches[row])
    if cursor == 0:
        cursor = latest(pool)
    place = 2 if position == cursor else 1 if is_near(position, cursor) else 0
    rank = min(int(pool.documents[pool.owner[position], RANK]), 1023)
    return (place * 32 + (match if match <= LONGEST else 0)) * 1024 + 1023 - rank


@compiled
def _group(pool: Pool, found: Candidates, growth: Growth, cursor: int) -> int:
    """Gather the scored candidates by their tokens; returns the number of groups."""
    groups, shares, slots = growth.groups, growth.shares, growth.slots
    slots[:] = -1
    count = 0
    for row in range(found.size[0]):
        token = pool.tokens[found.positions[row]]
        slot = scatter(token, len(slots))
        while slots[slot] >= 0 and groups[slots[slot], _TOKEN] != token:
            slot = (slot + 1) % len(slots)
        group = slots[slot]
        if group < 0:
            group = slots[slot] = count
            count += 1
            groups[group, _TOKEN], groups[group, _SIZE], shares[group] = token, 0, 0.0
            groups[group, _BEST] = groups[group, _CREDITED] = row
        growth.members[row] = group
        groups[group, _SIZE] += 1
        shares[group] += found.shares[row]
        if found.shares[row] > found.shares[groups[group, _BEST]]:
            groups[group, _BEST] = row
        if _claim(pool, found, row, cursor) > _claim(pool, found, groups[group, _CREDITED], cursor):
            groups[group, _CREDITED] = row
    return count


@compiled
def _branch(pool: Pool, found: Candidates, growth: Growth, node: int, cursor: int, branching: bool) -> None:
    """Turn scored candidates to branches behind a node (-1: the root), one for each token; only one unless `branching`.

    `cursor` is the position behind the node's own, 0 at the root.
    """
    branches, groups, sizes = growth.branches, growth.groups, growth.sizes
    parent = growth.nodes[node] if node >= 0 else -1
    chance = growth.survivals[parent] if node >= 0 else 1.0
    likeliest = -1
    for group in range(_group(pool, found, growth, cursor)):
        branch, size = sizes[_BRANCHED], groups[group, _SIZE]
        survival = chance * growth.shares[group]
        full = branch == len(branches) or sizes[_STORED] + size > len(growth.positions)
        groups[group, _STORE] = -1 if full or survival < _FLOOR else sizes[_STORED]
        if groups[group, _STORE] < 0:
            continue
        best = found.positions[groups[group, _BEST]]
        branches[branch, _TOKEN], branches[branch, _PARENT], branches[branch, _BEST] = groups[group, _TOKEN], node, best
        branches[branch, _CREDITED] = found.positions[groups[group, _CREDITED]]
        branches[branch, _DEPTH] = branches[parent, _DEPTH] + 1 if node >= 0 else 1
        if node < 0:
            branches[branch, _RUN] = run_length(pool, best)
        else:
            branches[branch, _RUN] = branches[parent, _RUN] + 1 if is_near(best, cursor) else 1
        branches[branch, _STORE], branches[branch, _SIZE] = sizes[_STORED], size
        growth.survivals[branch] = survival
        sizes[_STORED] += size
        sizes[_BRANCHED] += 1
        if branching:
            _push(growth, branch)
        elif likeliest < 0 or survival > growth.survivals[likeliest]:
            likeliest = branch
    if likeliest >= 0:
        _push(growth, likeliest)
    for row in range(found.size[0]):
        group = growth.members[row]
        if groups[group, _STORE] >= 0:
            growth.positions[groups[group, _STORE]] = found.positions[row]
            growth.matches[groups[group, _STORE]] = found.matches[row]
            groups[group, _STORE] += 1


@compiled
def _carry_on(pool: Pool, found: Candidates, growth: Growth, node: int) -> None:
    """Find what may come behind a node."""
    branch = growth.branches[growth.nodes[node]]
    parent, first, last = branch[_PARENT], branch[_STORE], branch[_STORE] + branch[_SIZE]
    before = growth.branches[growth.nodes[parent], _TOKEN] if parent >= 0 else pool.tokens[pool.state[CONTEXT_END] - 1]
    carry_on(
        pool,
        found,
        growth.positions[first:last],
        growth.matches[first:last],
        before,
        branch[_TOKEN],
        branch[_BEST],
        branch[_RUN],
        branch[_DEPTH],
    )


@compiled
def grow(pool: Pool, found: Candidates, growth: Growth, weights: Weights, budget: int, branching: bool) -> int:
    """Grow a draft of at most `budget` nodes, a chain unless `branching`; returns its nodes."""
    sizes = growth.sizes
    sizes[:] = 0
    find_candidates(pool, found)
    score(found, weights)
    _branch(pool, found, growth, -1, 0, branching)
    while sizes[_HEAPED] > 0 and sizes[_GROWN] < budget:
        branch, node = _pop(growth), sizes[_GROWN]
        growth.nodes[node] = branch
        sizes[_GROWN] += 1
        if sizes[_GROWN] < budget:
            _carry_on(pool, found, growth, node)
            score(found, weights)
            _branch(pool, found, growth, node, growth.branches[branch, _BEST] + 1, branching)
    return int(sizes[_GROWN])


@compiled
def _learn_within(pool: Pool, found: Candidates, growth: Growth, weights: Weights, tokens: Int) -> None:
    """Learn from what came behind the drafted tokens that held."""
    node = -1
    for index in range(len(tokens) - 1):
        child = -1
        for other in range(node + 1, growth.sizes[_GROWN]):
            branch = growth.branches[growth.nodes[other]]
            if branch[_PARENT] == node and branch[_TOKEN] == tokens[index]:
                child = other
                break
        if child < 0:
            return
        node = child
        _carry_on(pool, found, growth, node)
        learn_from(pool, found, weights, score(found, weights), tokens[index + 1])


@compiled
def follow(
    pool: Pool,
    found: Candidates,
    growth: Growth,
    weights: Weights,
    tokens: Int,
    runners: Int,
    looks: NDArray[np.uint8],
) -> None:
    """Take the tokens that were committed: learn from each, and move on behind it.

    `runners` and `looks` are those of `Runners`, a row for each token.
    """
    _learn_within(pool, found, growth, weights, tokens)
    growth.sizes[_GROWN] = 0
    for index in range(len(tokens)):
        find_candidates(pool, found)
        best = learn_from(pool, found, weights, score(found, weights), tokens[index])
        foreseen(pool, found, best)
        move_on(pool, best)
        keep_runners(pool, runners[index], looks[index])
        append_output(pool, tokens[index])
