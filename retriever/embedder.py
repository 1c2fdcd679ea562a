"""Text to vectors for dense search, on the CPU and without a network."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from wordllama.inference import WordLlamaInference


class Embedder(Protocol):
    """Maps texts to unit vectors whose inner product says how alike the texts are."""

    @property
    def name(self) -> str:
        """Recorded in the index: vectors of different embedders do not compare."""
        ...

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors, float32 [texts, dimension], of length 1, or 0 where a text has no known token."""
        ...


class WordLlamaEmbedder:
    """Static token vectors from the wordllama wheel, averaged; loaded at the first use (about 0.5 s)."""

    name = "wordllama-l2-supercat-256"
    dimension = 256

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `Embedder`."""
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        encodings = self._model.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        for vector, encoding in zip(vectors, encodings, strict=True):
            # Summing distinct tokens by their counts keeps a long text from costing a row per token; the
            # library's own pooling pads to the longest text and divides 0 by 0 for an empty one.
            ids, counts = np.unique(np.asarray(encoding.ids, dtype=np.int64), return_counts=True)
            total = counts.astype(np.float32) @ self._model.embedding[ids]
            vector[:] = total / max(float(np.linalg.norm(total)), 1e-12)
        return vectors

    @cached_property
    def _model(self) -> WordLlamaInference:
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        import wordllama

        root.handlers[:], root.level = handlers, level  # importing it configures the application's logging
        folder = Path(wordllama.__file__).parent
        model = wordllama.WordLlama.load(cache_dir=folder, dim=self.dimension, disable_download=True)
        model.tokenizer.no_padding()
        return model
