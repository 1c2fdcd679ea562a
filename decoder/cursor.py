"""Cursors: the places that are being copied from, and how other positions lie to them.

In correction and rewriting the output follows a text with local edits. When it departs from a cursor, the place is
kept for some tokens, and positions around it (a token substituted, inserted or deleted) remain candidates although no
token before them need match. Several cursors are kept, since a copy is often interrupted by another and resumed.
"""

from refdraft.decoder.compiled import compiled
from refdraft.decoder.pool import COPIED, CURSORS, SOURCE, Pool

MOST = 4
FOLLOWED = 3  # cursors around which positions are candidates
BEFORE, AFTER = 2, 7  # positions before and after a cursor that count as near it
NEAR = BEFORE + AFTER + 1
FORGOTTEN = 8  # tokens after a departure from which on a cursor is no longer followed

RELATIONS = 1 + 2 * FORGOTTEN * NEAR
RUNS = 13
DISTANCES = 12

POSITION, DEPARTED, RUN = range(3)  # columns of Pool.cursors


@compiled
def is_near(position: int, cursor: int) -> bool:
    """Whether a position counts as near a cursor's."""
    return -BEFORE <= position - cursor <= AFTER


@compiled
def doublings(number: int) -> int:
    """The logarithm to base 2 of a number >= 1, rounded down."""
    result = 0
    while number > 1:
        number >>= 1
        result += 1
    return result


@compiled
def run_bucket(run: int, departed: int) -> int:
    """A number in [1, RUNS) for how many tokens were copied and whether the output has departed since."""
    return 1 + min(5, doublings(run + 1)) + (6 if departed == 0 else 0)


@compiled
def relation(pool: Pool, position: int) -> tuple[int, int]:
    """How a position lies to the latest cursor near it: numbers in [0, RELATIONS) and [0, RUNS), 0 for none."""
    for index in range(min(pool.state[CURSORS], FOLLOWED)):
        cursor = pool.cursors[index, POSITION]
        if is_near(position, cursor):
            age = 0 if index == 0 else FORGOTTEN
            departed = min(pool.cursors[index, DEPARTED], FORGOTTEN - 1)
            near = (age + departed) * NEAR + position - cursor + BEFORE
            return 1 + near, run_bucket(pool.cursors[index, RUN], departed)
    return 0, 0


@compiled
def distance(pool: Pool, position: int, cursor: int) -> int:
    """A number in [0, DISTANCES) for how far a position is from a cursor's, 0 where there is none."""
    if cursor < 1:
        return 0
    here, there = pool.owner[position], pool.owner[cursor - 1]
    if here != there:
        if pool.documents[here, SOURCE] != pool.documents[there, SOURCE]:
            return 9
        return 10 if here > there else 11
    ahead = position >= cursor
    gap = abs(position - cursor)
    bucket = 1 if gap < 8 else 2 if gap < 32 else 3 if gap < 128 else 4
    return bucket if ahead else bucket + 4


@compiled
def latest(pool: Pool) -> int:
    """The position that the latest cursor would copy next, 0 without a cursor."""
    return pool.cursors[0, POSITION] if pool.state[CURSORS] > 0 else 0


@compiled
def departed(pool: Pool) -> int:
    """Tokens committed since the output departed from the latest cursor, FORGOTTEN - 1 at most and without one."""
    return min(pool.cursors[0, DEPARTED], FORGOTTEN - 1) if pool.state[CURSORS] > 0 else FORGOTTEN - 1


@compiled
def _followed_to(pool: Pool, position: int) -> int:
    """The cursor that copying from a position goes on with, -1 for none: one that stands there, else one near it."""
    cursors, count = pool.cursors, pool.state[CURSORS]
    for index in range(count):
        if cursors[index, POSITION] == position and cursors[index, DEPARTED] == 0:
            return index
    for index in range(count):
        since = cursors[index, DEPARTED]
        if 0 < since < FORGOTTEN and is_near(position, cursors[index, POSITION]):
            return index
    return -1


@compiled
def run_length(pool: Pool, position: int) -> int:
    """Tokens that will have been copied in a run when a position's token is accepted."""
    index = _followed_to(pool, position)
    return pool.cursors[index, RUN] + 1 if index >= 0 else 1


@compiled
def move_on(pool: Pool, position: int) -> None:
    """Note that the token at a position was copied; 0 for a token that was not."""
    cursors, state = pool.cursors, pool.state
    if position <= 0:
        for index in range(state[CURSORS]):
            cursors[index, DEPARTED] += 1
        return
    pool.used[position] = min(int(pool.used[position]) + 1, 250)
    pool.documents[pool.owner[position], COPIED] += 1
    place, run = _followed_to(pool, position), run_length(pool, position)
    if place < 0:
        place = min(state[CURSORS], MOST - 1)
        state[CURSORS] = place + 1
    for index in range(place, 0, -1):
        for column in range(3):
            cursors[index, column] = cursors[index - 1, column]
    cursors[0, POSITION], cursors[0, DEPARTED], cursors[0, RUN] = position + 1, 0, run
    for index in range(1, state[CURSORS]):
        cursors[index, DEPARTED] += 1
