"""Sample-and-match verification: a draft token is accepted exactly if it is what the target chooses there.

Glossary:
    accepted token: a draft token that the target chose too.
    recovered token: the target's own token where every draft child departs from it.
    bonus token: the target's own token behind a draft that held to its end.
"""

from collections.abc import Callable, Iterator

from refdraft.decoder.draft import Draft


def verify(draft: Draft, choose: Callable[[int], int]) -> Iterator[tuple[int, int | None]]:
    """Walk a draft along the target's choices.

    Args:
        draft: the candidates that were verified.
        choose: the target's token behind a row of the pass; row 0 is the last committed token, row i + 1 is
            node i. It is called once for each row on the path, in order, never for a row beside it.

    Yields:
        (token, node): the committed tokens in order; node is None for the last, recovered or bonus one. A
        caller that stops early (a stop rule was met) just leaves the rest of the walk.
    """
    node: int | None = -1
    while node is not None:
        token = choose(node + 1)
        node = draft.child(node, token)
        yield token, node
