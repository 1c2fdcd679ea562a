import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faiss
import numpy as np
import pytest

from refdraft.errors import IndexFormatError
from refdraft.retriever import dense
from refdraft.retriever.dense import DenseRetriever, build_dense, training_sample_size
from refdraft.retriever.embedder import WordLlamaEmbedder

TEXTS = ["otters sleep in the sea", "the bridge over the river", "bread and flour", "mathematics lecture"]


def test_vectors_are_unit_or_zero() -> None:
    vectors = WordLlamaEmbedder().embed(["otters", "", "otters " * 500])
    assert vectors.shape == (3, 256)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 0, 1], abs=1e-5)


def test_loading_the_embedder_leaves_logging_alone() -> None:
    import logging

    before = logging.getLogger().level, logging.getLogger().handlers[:]
    WordLlamaEmbedder().embed(["otters"])
    assert before == (logging.getLogger().level, logging.getLogger().handlers[:])


def test_meaning_is_found_without_a_common_word(tmp_path: Path) -> None:
    embedder = WordLlamaEmbedder()
    vectors = embedder.embed(TEXTS)
    build_dense([vectors[:3], vectors[3:]], vectors, 4, tmp_path / "vectors")
    retriever = DenseRetriever.open(tmp_path / "vectors", embedder, 4)
    assert retriever.search("baking a loaf", 1)[0][0] == 2
    assert len(retriever.search("baking", 50)) == 4
    assert retriever.search("", 3) == []


def test_beyond_the_flat_limit_lists_find_nearly_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "_FLAT_LIMIT", 1000)
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(100, 256))
    vectors = (centres[generator.integers(0, 100, 3000)] + 0.7 * generator.normal(size=(3000, 256))).astype("float32")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    sample = vectors[generator.permutation(3000)[: training_sample_size(3000)]]
    build_dense([vectors], sample, 3000, tmp_path / "vectors")

    class Echo(WordLlamaEmbedder):
        def embed(self, texts: object) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
            return vectors[[int(str(text)) for text in list(texts)]]  # type: ignore[call-overload]

    retriever = DenseRetriever.open(tmp_path / "vectors", Echo(), 3000)
    best = np.argsort(-(vectors[:50] @ vectors.T), axis=1)[:, :10]
    found = [[number for number, _ in retriever.search(str(row), 10)] for row in range(50)]
    shared = [len(set(ours) & set(exact)) / 10 for ours, exact in zip(found, best.tolist(), strict=True)]
    assert np.mean(shared) > 0.9


def test_opening_several_at_once_leaves_the_limit_of_other_faiss_users_alone(tmp_path: Path) -> None:
    embedder = WordLlamaEmbedder()
    large = np.repeat(embedder.embed(TEXTS), 1500, axis=0)
    for vectors in (large, large[:4]):
        build_dense([vectors], vectors, len(vectors), tmp_path / str(len(vectors)))
    limit, interval = faiss.get_deserialization_vector_byte_limit(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            sizes = [len(large), 4] * 200
            list(pool.map(lambda size: DenseRetriever.open(tmp_path / str(size), embedder, size), sizes))
    finally:
        sys.setswitchinterval(interval)
    assert faiss.get_deserialization_vector_byte_limit() == limit
    (tmp_path / "4").write_bytes(b"not FAISS")
    with pytest.raises(IndexFormatError):
        DenseRetriever.open(tmp_path / "4", embedder, 4)
    assert faiss.get_deserialization_vector_byte_limit() == limit


def test_a_file_of_other_vectors_is_refused(tmp_path: Path) -> None:
    embedder = WordLlamaEmbedder()
    vectors = embedder.embed(TEXTS)
    build_dense([vectors], vectors, 4, tmp_path / "vectors")
    with pytest.raises(IndexFormatError, match="other vectors"):
        DenseRetriever.open(tmp_path / "vectors", embedder, 5)
    (tmp_path / "vectors").write_bytes(b"IxSQ" + b"\xff" * 100)
    with pytest.raises(IndexFormatError, match="not a FAISS index"):
        DenseRetriever.open(tmp_path / "vectors", embedder, 4)
