"""Dense search: passage vectors in a FAISS index with 8 bits per dimension."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from refdraft.errors import IndexFormatError
from refdraft.retriever.embedder import Embedder
from refdraft.retriever.retriever import Ranking

if TYPE_CHECKING:
    import faiss

_FLAT_LIMIT = 100_000  # passages; up to here scanning all is exact and takes under 3 ms
_VECTORS_PER_LIST = 64  # of the training sample; FAISS asks for at least 39
_BYTE_LIMIT_LOCK = threading.Lock()  # FAISS has one limit for the whole process


def training_sample_size(passages: int) -> int:
    """How many vectors training needs: enough for 8-bit ranges, and for the lists beyond the flat limit."""
    return min(passages, 16_384 if passages <= _FLAT_LIMIT else _lists(passages) * _VECTORS_PER_LIST)


def build_dense(batches: Iterable[NDArray[np.float32]], sample: NDArray[np.float32], passages: int, path: Path) -> None:
    """Train, fill and write the FAISS index.

    Args:
        batches: All unit vectors in passage order, each float32 [some, dimension].
        sample: Vectors to train on, float32 [`training_sample_size(passages)`, dimension].
        passages: How many vectors the batches hold together.
        path: File to write.
    """
    import faiss

    index = _new_index(sample.shape[1], passages)
    index.train(sample)
    for batch in batches:
        index.add(batch)
    assert index.ntotal == passages
    faiss.write_index(index, str(path))


class DenseRetriever:
    """Search by meaning; the score is the cosine."""

    def __init__(self, index: faiss.Index, embedder: Embedder) -> None:
        self._index = index
        self._embedder = embedder

    @classmethod
    def open(cls, path: Path, embedder: Embedder, passages: int) -> DenseRetriever:
        """Map a FAISS file, whose hash the caller has checked: its parser trusts what it reads.

        Raises:
            IndexFormatError: The file is not an index of that many vectors of this embedder.
        """
        import faiss

        try:
            with _byte_limit(max(path.stat().st_size, 1 << 20)):
                index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise IndexFormatError(f"{path} is not a FAISS index: rebuild it") from error
        if (index.ntotal, index.d) != (passages, embedder.dimension):
            raise IndexFormatError(f"{path} holds other vectors than the manifest says: rebuild the index")
        return cls(index, embedder)

    def search(self, query: str, top_k: int) -> Ranking:
        """See `Retriever`; a query without any known token has no hits."""
        vector = self._embedder.embed([query])
        if not vector.any():
            return []
        scores, numbers = self._index.search(vector, min(top_k, self._index.ntotal))
        hits = zip(numbers[0].tolist(), scores[0].tolist(), strict=True)
        return sorted((hit for hit in hits if hit[0] >= 0), key=lambda hit: (-hit[1], hit[0]))


@contextmanager
def _byte_limit(size: int) -> Iterator[None]:
    """Have FAISS refuse a file that claims to need an array of more than `size` bytes, here and nowhere else."""
    import faiss

    with _BYTE_LIMIT_LOCK:
        before = faiss.get_deserialization_vector_byte_limit()
        faiss.set_deserialization_vector_byte_limit(size)
        try:
            yield
        finally:
            faiss.set_deserialization_vector_byte_limit(before)


def _lists(passages: int) -> int:
    return 4 * math.isqrt(passages)


def _new_index(dimension: int, passages: int) -> faiss.Index:
    import faiss

    if passages <= _FLAT_LIMIT:
        return faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    coarse = faiss.IndexFlatIP(dimension)
    index = faiss.IndexIVFScalarQuantizer(
        coarse, dimension, _lists(passages), faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    )
    index.nprobe = max(16, _lists(passages) // 16)
    return index
