"""An opened index: search it, read its passages."""

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from refdraft.errors import InvalidRequestError, PreconditionError
from refdraft.retriever.bm25 import BM25Retriever
from refdraft.retriever.dense import DenseRetriever
from refdraft.retriever.embedder import WordLlamaEmbedder
from refdraft.retriever.fusion import HybridRetriever
from refdraft.retriever.manifest import BM25_DIRECTORY, PARSED_FILES, VECTORS_FILE, Manifest
from refdraft.retriever.passages import PassageStore, StoredPassage
from refdraft.retriever.retriever import Retriever

SearchMode = Literal["bm25", "dense", "hybrid"]


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that a search found; the score's scale depends on the mode."""

    passage: StoredPassage
    number: int
    score: float


class Index:
    """A directory made by `refdraft index build`. Safe to search from several threads."""

    def __init__(
        self, name: str, manifest: Manifest, passages: PassageStore, retrievers: dict[SearchMode, Retriever]
    ) -> None:
        self.name = name
        self.manifest = manifest
        self.passages = passages
        self._retrievers = retrievers

    @classmethod
    def open(cls, directory: Path, *, name: str = "", tokenizer_fingerprint: str | None = None) -> "Index":
        """Open an index after checking its manifest, its files' sizes, and the hashes of what is parsed.

        Args:
            directory: Where the index is.
            name: What callers know it by; the directory's own name if empty.
            tokenizer_fingerprint: Fingerprint of the target's tokenizer, if passages shall serve as drafts.

        Raises:
            NotFoundError: The directory does not exist.
            IndexFormatError: It is not an index, or was truncated or altered.
            PreconditionError: It was built with another tokenizer or embedder.
        """
        manifest = Manifest.read(directory)
        if tokenizer_fingerprint not in (None, manifest.tokenizer_fingerprint):
            raise PreconditionError(
                f"{directory} was built with another tokenizer: rebuild it with "
                "`refdraft index build SOURCE --out DIR --force --tokenizer MODEL_DIR`"
            )
        manifest.check_sizes(directory)
        manifest.check_hashes(directory, PARSED_FILES & manifest.files.keys())
        passages = PassageStore(
            directory,
            documents=manifest.documents,
            passages=manifest.passages,
            tokens=manifest.tokens,
            vocabulary_size=manifest.vocabulary_size,
        )
        return cls(name or directory.resolve().name, manifest, passages, _retrievers(directory, manifest))

    @property
    def modes(self) -> tuple[SearchMode, ...]:
        """The ways this index can be searched."""
        return tuple(self._retrievers)

    def search(self, query: str, *, top_k: int, mode: SearchMode | None = None) -> list[Hit]:
        """Find passages, best first; fewer than `top_k` where fewer match.

        Args:
            query: Words or a question; not empty.
            top_k: Most hits to return, at least 1.
            mode: None takes hybrid where the index has vectors, else bm25.

        Raises:
            InvalidRequestError: An argument is out of range.
            PreconditionError: The index has no vectors, and the mode needs them.
            IndexFormatError: The index was altered.
        """
        _check_query(query, top_k)
        chosen = mode or self.modes[-1]
        if chosen not in ("bm25", "dense", "hybrid"):
            raise InvalidRequestError(f"must be bm25, dense or hybrid, not {chosen!r}", field="mode")
        if chosen not in self._retrievers:
            raise PreconditionError(
                f"index {self.name} has no vectors for {chosen} search: use bm25, or rebuild without --no-dense"
            )
        ranking = self._retrievers[chosen].search(query, top_k)
        return [Hit(self.passages[number], number, score) for number, score in ranking]

    def close(self) -> None:
        """Give the memory maps back; the index is of no use afterwards."""
        self.passages.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _retrievers(directory: Path, manifest: Manifest) -> dict[SearchMode, Retriever]:
    bm25 = BM25Retriever.open(directory / BM25_DIRECTORY)
    if manifest.embedder is None:
        return {"bm25": bm25}
    embedder = WordLlamaEmbedder()
    if manifest.embedder != embedder.name:
        raise PreconditionError(
            f"{directory} was built with embedder {manifest.embedder}, this version has {embedder.name}: rebuild it"
        )
    dense = DenseRetriever.open(directory / VECTORS_FILE, embedder, manifest.passages)
    return {"bm25": bm25, "dense": dense, "hybrid": HybridRetriever([bm25, dense])}


def _check_query(query: str, top_k: int) -> None:
    if not query.strip():
        raise InvalidRequestError("must not be empty", field="query")
    try:
        query.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError("must not hold a lone surrogate", field="query") from error
    if top_k < 1:
        raise InvalidRequestError(f"must be at least 1, not {top_k}", field="top_k")
