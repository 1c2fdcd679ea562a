import pytest

from refdraft.retriever.ranker import rank_texts


@pytest.mark.parametrize(
    ("texts", "limit", "expected"),
    [
        ([], 3, []),
        (["", "  "], 3, [0, 1]),
        (["only one"], 3, [0]),
        (["about cats", "about otters"], 1, [1]),
        (["about cats", "", "Otters, otters!", "one otters text"], 9, [2, 3, 1, 0]),
        (["about otters"], 0, []),
    ],
)
def test_best_match_first(texts: list[str], limit: int, expected: list[int]) -> None:
    found = rank_texts("where are the OTTERS?", texts, limit)
    assert found[:2] == expected[:2]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("query", ["", "?!", "unheard-of"])
def test_a_query_that_matches_nothing_keeps_the_order(query: str) -> None:
    assert rank_texts(query, ["b", "a", "c"], 2) == [0, 1]
