from pathlib import Path

import numpy as np
import pytest

from refdraft.retriever.bm25 import BM25Retriever, build_bm25
from refdraft.retriever.words import words


def opened(texts: list[str], directory: Path) -> BM25Retriever:
    build_bm25(texts, directory)
    return BM25Retriever.open(directory)


def test_scores_are_bm25s(tmp_path: Path) -> None:
    """Against the formula (Lucene's variant, k1 1.5, b 0.75), written out here."""
    texts = ["red fox", "red red wine and cheese", "blue wine", "green"]
    found = dict(opened(texts, tmp_path).search("red wine", 9))
    mean = np.mean([len(words(text)) for text in texts])
    for number, text in enumerate(texts):
        score = 0.0
        for word in ("red", "wine"):
            holders = sum(word in words(other) for other in texts)
            idf = np.log(1 + (len(texts) - holders + 0.5) / (holders + 0.5))
            count = words(text).count(word)
            score += idf * count / (count + 1.5 * (1 - 0.75 + 0.75 * len(words(text)) / mean))
        assert found.get(number, 0.0) == pytest.approx(score, rel=1e-5)


def test_no_word_in_common_no_hit(tmp_path: Path) -> None:
    retriever = opened(["red fox", "blue wine"], tmp_path)
    assert retriever.search("unheard of", 5) == []
    assert retriever.search("?!", 5) == []
    assert [number for number, _ in retriever.search("the wine", 5)] == [1]


def test_equal_scores_go_by_number_also_at_the_cut(tmp_path: Path) -> None:
    retriever = opened(["none", *["same text"] * 20, "same same"], tmp_path)
    assert [number for number, _ in retriever.search("same", 4)] == [21, 1, 2, 3]


def test_a_word_said_twice_counts_once(tmp_path: Path) -> None:
    retriever = opened(["red fox", "blue wine"], tmp_path)
    assert retriever.search("red red red wine", 2) == retriever.search("red wine", 2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("texts", [["!!!"], ["one"], ["!!!", "one"]])
def test_texts_without_words(texts: list[str], tmp_path: Path) -> None:
    assert len(opened(texts, tmp_path).search("one", 3)) == ("one" in texts)


def test_nothing_is_pickled(tmp_path: Path) -> None:
    build_bm25(["red fox"], tmp_path)
    for path in tmp_path.iterdir():
        if path.suffix == ".npy":
            np.load(path, allow_pickle=False)
        else:
            assert path.suffix == ".json"
