from hypothesis import given
from hypothesis import strategies as st

from refdraft.retriever.fusion import HybridRetriever, fuse
from refdraft.retriever.retriever import Ranking


class Fixed:
    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def search(self, query: str, top_k: int) -> Ranking:
        return [(number, 1.0) for number in self.numbers[:top_k]]


def test_what_both_find_comes_first() -> None:
    assert [number for number, _ in fuse([[(7, 9.0), (3, 8.0)], [(3, 0.9), (5, 0.8)]])] == [3, 7, 5]


def test_the_first_ranking_decides_a_tie_and_then_the_number() -> None:
    assert [number for number, _ in fuse([[(9, 1.0), (2, 1.0)], [(2, 1.0), (9, 1.0)]])] == [9, 2]
    assert [number for number, _ in fuse([[], [(4, 1.0)], [(1, 1.0)]])] == [1, 4]
    assert fuse([]) == []


def test_hybrid_returns_no_more_than_asked_for() -> None:
    hybrid = HybridRetriever([Fixed([1, 2, 3]), Fixed([3, 2, 4])])
    assert [number for number, _ in hybrid.search("any", 2)] == [3, 2]


rankings = st.lists(st.integers(0, 20), unique=True).map(lambda numbers: [(number, 1.0) for number in numbers])


@given(st.lists(rankings, max_size=3))
def test_every_passage_once_in_falling_order(parts: list[Ranking]) -> None:
    fused = fuse(parts)
    assert sorted(number for number, _ in fused) == sorted({number for part in parts for number, _ in part})
    scores = [score for _, score in fused]
    assert scores == sorted(scores, reverse=True)
