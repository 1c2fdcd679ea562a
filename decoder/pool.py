"""The pool: all that one request may copy from, laid out flat for compiled code.

`tokens` holds, with BORDER between and around documents,

    [documents known from the start | prompt, output so far, room for more | later documents | runners-up | guess]

A *position* is the index of a token that may be copied next. Positions are linked by what stands before them: by the
last token's class, the last 2 and the last 4 tokens (hash chains, as in LZ77 compressors). Linking costs O(1) a token,
and following the first links of a chain O(1) a step, however long the texts are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.compiled import compiled

# A request's sources by the number that stands for each in arrays.
SOURCES = ("references", "prompt", "prediction", "output", "corpus", "history", "target", "model")
REFERENCES, PROMPT, PREDICTION, OUTPUT, CORPUS, HISTORY, TARGET, MODEL = range(len(SOURCES))

BORDER = -1  # no token id is negative
LONGEST = 16  # tokens of a match that are counted; a longer one counts as this
SENTENCE_END = 0  # class of the tokens that end a sentence or a line, and of borders

LATE_TOKENS = 1 << 15  # room for documents that come while the output is written
LATE_DOCUMENTS = 512
_LATE_RANK = 1 << 10  # behind all that were known from the start
RUNNER_ROWS = 1 << 11  # contexts whose likeliest next tokens are kept
RUNNERS = 8  # next tokens of each
GUESSES = 4  # tokens that a draft model guesses at most

# Where a number stands in `Pool.state`.
OUTPUT_START, CONTEXT_END, LATE_END, RUNNERS_START, GUESS_START, DOCUMENTS, STAMP, COPY_OUTPUT, CURSORS = range(9)

# Columns of `Pool.documents`.
SOURCE, RANK, START, COPIED, NUMBER = range(5)

Int = NDArray[np.int32]
Long = NDArray[np.int64]


class Pool(NamedTuple):
    """See the module. Written by compiled functions in place.

    Attributes:
        tokens: int32 [capacity].
        owner: int32 [capacity], the document of each token; a border's is that of the document before it.
        used: uint8 [capacity], how often a token was copied.
        evidence: uint8 [capacity], for runners-up and a draft model's tokens how likely they looked; else 0.
        marks: int64 [capacity], the last search that met a position.
        older: int32 [3, capacity], the next position of each of a position's three chains; 0 ends a chain.
        heads: int32 [3, 2**k], the first position of each chain of the first part, best document first.
        late_heads: int32 [3, 2**k], the same of everything linked later, latest first.
        documents: int32 [documents, 5], source, rank within it, position of its first token, tokens copied so far, and
            the number that origins call it by.
        classes: int32 [vocabulary], tokens that may stand for one another, as "The" for " the".
        runner_keys: int64 [RUNNER_ROWS], the context that each row of runners-up belongs to.
        cursors: int64 [4, 3], places being copied from, latest first: position to copy next, tokens committed since
            the output departed from it, tokens copied before that.
        copying: float64 [1], share of the last tokens that were foreseen.
        state: int64, see the constants above.
    """

    tokens: Int
    owner: Int
    used: NDArray[np.uint8]
    evidence: NDArray[np.uint8]
    marks: Long
    older: Int
    heads: Int
    late_heads: Int
    documents: Int
    classes: Int
    runner_keys: Long
    cursors: Long
    copying: NDArray[np.float64]
    state: Long


def fill_pool(
    prompt: Sequence[int],
    documents: Sequence[tuple[int, Sequence[int]]],
    *,
    output_room: int,
    classes: Int,
    copy_prompt: bool,
    copy_output: bool,
) -> Pool:
    """Lay out a request's texts.

    Args:
        prompt: token ids.
        documents: (source, token ids) of each document, best first within a source.
        output_room: output tokens at most.
        classes: see `Pool`; token ids from its size on are taken for borders.
        copy_prompt: whether the prompt may be copied from.
        copy_output: whether the output may be copied from.
    """
    first = sum(len(ids) + 1 for _, ids in documents) + 1
    late_start = first + len(prompt) + output_room + 1
    runners_start = late_start + LATE_TOKENS
    guess_start = runners_start + RUNNER_ROWS * RUNNERS
    capacity = guess_start + GUESSES + 1
    late_size = len(prompt) + output_room + LATE_TOKENS
    # Memory of zeros costs nothing until it is written, so the room that stays empty is free.
    pool = Pool(
        tokens=np.zeros(capacity, np.int32),
        owner=np.zeros(capacity, np.int32),
        used=np.zeros(capacity, np.uint8),
        evidence=np.zeros(capacity, np.uint8),
        marks=np.zeros(capacity, np.int64),
        older=np.zeros((3, capacity), np.int32),
        heads=np.zeros((3, _power_of_two(first)), np.int32),
        late_heads=np.zeros((3, _power_of_two(late_size)), np.int32),
        documents=np.zeros((len(documents) + 4 + LATE_DOCUMENTS, 5), np.int32),
        classes=classes,
        runner_keys=np.full(RUNNER_ROWS, -1, np.int64),
        cursors=np.zeros((4, 3), np.int64),
        copying=np.full(1, 0.5),
        state=np.zeros(CURSORS + 1, np.int64),
    )
    ranks = [0] * len(SOURCES)
    position = 1
    pool.tokens[0] = BORDER
    for number, (source, ids) in enumerate(documents):
        end = position + len(ids)
        pool.tokens[position:end] = _known(ids, len(classes))
        pool.tokens[end] = BORDER
        pool.owner[position : end + 1] = number
        pool.documents[number] = (source, ranks[source], position, 0, ranks[source])
        ranks[source] += 1
        position = end + 1
    link_first(pool, position)
    _start_context(pool, position, _known(prompt, len(classes)), output_room, len(documents), copy_prompt=copy_prompt)
    pool.state[[LATE_END, RUNNERS_START, COPY_OUTPUT]] = late_start, runners_start, copy_output
    pool.state[GUESS_START] = guess_start
    pool.owner[runners_start:guess_start] = len(documents) + 2
    pool.owner[guess_start:] = len(documents) + 3
    pool.tokens[guess_start:] = BORDER
    return pool


def _start_context(pool: Pool, start: int, prompt: Int, output_room: int, number: int, *, copy_prompt: bool) -> None:
    """Put the prompt behind the documents; prompt, output, runners-up and guess are documents `number` to + 3."""
    end = start + len(prompt)
    pool.tokens[start:end] = prompt
    pool.tokens[end : end + output_room + 1] = BORDER
    pool.owner[start:end] = number
    pool.owner[end:] = number + 1
    pool.documents[number] = (PROMPT, 0, start, 0, 0)
    pool.documents[number + 1] = (OUTPUT, 0, end, 0, 0)
    pool.documents[number + 2] = (TARGET, 0, 0, 0, 0)
    pool.documents[number + 3] = (MODEL, 0, 0, 0, 0)
    pool.state[[OUTPUT_START, CONTEXT_END, DOCUMENTS]] = end, end, number + 4
    if copy_prompt:
        link_late(pool, start + 1, end)


def _known(ids: Sequence[int], vocabulary: int) -> Int:
    array = np.asarray(ids, np.int64)
    return np.where((array >= 0) & (array < vocabulary), array, BORDER).astype(np.int32)


def _power_of_two(tokens: int) -> int:
    return 1 << max(10, int(tokens).bit_length())


@compiled
def scatter(key: int, slots: int) -> int:
    """A hash of `key` below `slots`, a power of two (Fibonacci hashing, Knuth, vol. 3, 6.4)."""
    return ((int(key) * -7046029254386353131) >> 24) & (slots - 1)


@compiled
def token_class(pool: Pool, token: int) -> int:
    """The class of a token or a border."""
    return int(pool.classes[token]) if token >= 0 else SENTENCE_END


@compiled
def chain_key(pool: Pool, position: int, chain: int) -> int:
    """What chain 0, 1 or 2 of a position is known by; -1 where a border stands within the tokens it is made of."""
    tokens = pool.tokens
    if chain == 0:
        return token_class(pool, tokens[position - 1])
    reach = 2 if chain == 1 else 4
    key = 0
    for back in range(1, reach + 1):
        if position < back or tokens[position - back] < 0:
            return -1
        key = (key * 1000003 + int(tokens[position - back])) & 0x7FFFFFFFFFFFFFFF
    return key


@compiled
def link(pool: Pool, heads: Int, position: int) -> None:
    """Put a position at the head of its chains."""
    for chain in range(3):
        key = chain_key(pool, position, chain)
        if key >= 0:
            slot = scatter(key, heads.shape[1])
            pool.older[chain, position] = heads[chain, slot]
            heads[chain, slot] = position


@compiled
def link_first(pool: Pool, end: int) -> None:
    """Link the positions before `end`, last one first, so that chains begin with the best document."""
    for position in range(end - 1, 0, -1):
        if pool.tokens[position] >= 0:
            link(pool, pool.heads, position)


@compiled
def link_late(pool: Pool, start: int, end: int) -> None:
    """Link positions [start, end), which then lead their chains, the last one first."""
    for position in range(start, end):
        if pool.tokens[position] >= 0:
            link(pool, pool.late_heads, position)


@compiled
def match_length(pool: Pool, position: int) -> int:
    """Tokens before a position that equal the context's last ones, LONGEST at most."""
    tokens, end = pool.tokens, pool.state[CONTEXT_END]
    length = 0
    while length < LONGEST:
        token = tokens[position - 1 - length]
        if token < 0 or token != tokens[end - 1 - length]:
            break
        length += 1
    return length


@compiled
def add_document(pool: Pool, source: int, ids: Int, number: int, offset: int) -> bool:
    """Add a part of a document that may be copied from now on; False where no room is left for it.

    Origins call the document `number` and count from `offset` tokens before the part.
    """
    state = pool.state
    row, start = state[DOCUMENTS], state[LATE_END] + 1
    end = start + len(ids)
    if row >= len(pool.documents) or end >= state[RUNNERS_START]:
        return False
    pool.tokens[start - 1] = BORDER
    for index in range(len(ids)):
        known = 0 <= ids[index] < len(pool.classes)
        pool.tokens[start + index] = ids[index] if known else BORDER
    pool.tokens[end] = BORDER
    pool.owner[start - 1 : end + 1] = row
    pool.documents[row, SOURCE], pool.documents[row, START] = source, start - offset
    pool.documents[row, RANK], pool.documents[row, NUMBER] = _LATE_RANK, number
    state[DOCUMENTS], state[LATE_END] = row + 1, end
    link_late(pool, start, end)
    return True


@compiled
def append_output(pool: Pool, token: int) -> None:
    """Lengthen the context by one committed token."""
    state = pool.state
    end = state[CONTEXT_END]
    pool.tokens[end] = token if token < len(pool.classes) else BORDER
    state[CONTEXT_END] = end + 1
    if state[COPY_OUTPUT]:
        link_late(pool, end, end + 1)


@compiled
def set_guess(pool: Pool, ids: Int, looks: NDArray[np.uint8]) -> None:
    """Put a draft model's guess of the next tokens in place of its last one.

    Args:
        pool: where.
        ids: int32 [GUESSES at most].
        looks: uint8 [as many], see `Pool.evidence`.
    """
    start = pool.state[GUESS_START]
    for index in range(len(ids)):
        pool.tokens[start + index] = ids[index] if ids[index] < len(pool.classes) else BORDER
        pool.evidence[start + index] = looks[index]
    pool.tokens[start + len(ids)] = BORDER


@compiled
def runner_row(key: int) -> int:
    """The row that the runners-up of a context are kept in, if they are."""
    return scatter(key, RUNNER_ROWS)


@compiled
def runner_key(before: int, token: int) -> int:
    """What the runners-up behind `token` are known by; `before` is the token before it, -1 for any."""
    return (int(before) + 1) * (1 << 31) + int(token)


@compiled
def keep_runners(pool: Pool, ids: Int, looks: NDArray[np.uint8]) -> None:
    """Remember what the target thought likely behind the context's last two tokens, and behind the last one.

    Args:
        pool: where.
        ids: int32 [RUNNERS], likeliest first; the first is negative where nothing is known.
        looks: uint8 [RUNNERS], see `Pool.evidence`.
    """
    end, start = pool.state[CONTEXT_END], pool.state[RUNNERS_START]
    token = pool.tokens[end - 1]
    if ids[0] < 0 or token < 0:
        return
    for key in (runner_key(pool.tokens[end - 2], token), runner_key(-1, token)):
        row = runner_row(key)
        pool.runner_keys[row] = key
        first = start + row * RUNNERS
        for index in range(RUNNERS):
            pool.tokens[first + index] = ids[index] if ids[index] < len(pool.classes) else BORDER
            pool.evidence[first + index] = looks[index]
