"""From sources to an index directory: read and cut, then suffixes, BM25 and vectors, then the manifest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from refdraft.errors import SourceFormatError
from refdraft.index_builder.chunking import Chunker, ChunkOptions
from refdraft.index_builder.documents import Columns, Report
from refdraft.index_builder.readers import Reader
from refdraft.index_builder.replace import replacing
from refdraft.index_builder.suffixes import write_suffixes
from refdraft.index_builder.writer import PassageWriter
from refdraft.retriever.bm25 import build_bm25
from refdraft.retriever.dense import build_dense, training_sample_size
from refdraft.retriever.embedder import Embedder, WordLlamaEmbedder
from refdraft.retriever.manifest import BM25_DIRECTORY, SUFFIXES_FILE, VECTORS_FILE, FileEntry, Manifest
from refdraft.retriever.passages import PassageStore
from refdraft.retriever.tokenizer import Tokenizer

_EMBED_BATCH = 256  # passages


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """How to build an index."""

    chunks: ChunkOptions = field(default_factory=ChunkOptions)
    columns: Columns = field(default_factory=Columns)
    dense: bool = True  # with vectors beside BM25
    force: bool = False  # replace an index that is there
    progress: bool = False  # bars on stderr


def build_index(
    sources: Sequence[Path], out: Path, tokenizer: Tokenizer, options: BuildOptions, report: Report
) -> Manifest:
    """Build an index; `out` appears, or changes, only when all of it is written.

    Memory holds one document at a time, plus what BM25 and FAISS need for the whole.

    Args:
        sources: Files and folders to read.
        out: Directory to make.
        tokenizer: The target's.
        options: See `BuildOptions`.
        report: Called with each problem of a source; it may raise to give up.

    Raises:
        NotFoundError: A source does not exist.
        InvalidRequestError: A source is of a kind that cannot be read.
        SourceFormatError: There is nothing to index.
        PreconditionError: `out` may not be replaced, or another build is at work on it.
    """
    with replacing(out, force=options.force) as directory:
        counts = _write_passages(directory, sources, tokenizer, options, report)
        store = PassageStore(directory, vocabulary_size=tokenizer.vocabulary_size, **counts)
        with _bar(options, desc="suffixes", unit=" tokens", unit_scale=True, total=len(store.tokens)) as bar:
            write_suffixes(store.tokens, store.starts, directory / SUFFIXES_FILE, bar.update)
        with _bar(options, desc="BM25", unit=" passages", total=len(store), iterable=store) as passages:
            texts = (passage.search_text for passage in passages)
            build_bm25(texts, directory / BM25_DIRECTORY, progress=options.progress)
        embedder = WordLlamaEmbedder() if options.dense else None
        if embedder:
            _write_vectors(directory, store, embedder, options)
        store.close()
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        manifest = Manifest(
            **counts,
            passage_tokens=options.chunks.passage_tokens,
            overlap_tokens=options.chunks.overlap_tokens,
            tokenizer_fingerprint=tokenizer.fingerprint,
            vocabulary_size=tokenizer.vocabulary_size,
            embedder=embedder.name if embedder else None,
            dimension=embedder.dimension if embedder else 0,
            files={path.relative_to(directory).as_posix(): FileEntry.of(path) for path in files},
        )
        manifest.write(directory)
    return manifest


def _write_passages(
    directory: Path, sources: Sequence[Path], tokenizer: Tokenizer, options: BuildOptions, report: Report
) -> dict[str, int]:
    chunker = Chunker(tokenizer, options.chunks)
    bar = _bar(options, desc="reading", unit="B", unit_scale=True)
    with bar, PassageWriter(directory, tokenizer.vocabulary_size) as writer:
        reader = Reader(sources, options.columns, report, bar.update)
        bar.reset(reader.total_size)
        for document in reader:
            writer.add(document, chunker.chunks(document.text))
    if not writer.passages:
        named = ", ".join(map(str, sources))
        raise SourceFormatError(f"nothing to index in {named}: there is no readable text")
    return {"documents": writer.documents, "passages": writer.passages, "tokens": writer.tokens}


def _write_vectors(directory: Path, store: PassageStore, embedder: Embedder, options: BuildOptions) -> None:
    total, size = len(store), training_sample_size(len(store))
    with _bar(options, desc="vectors", unit=" passages", total=size + (total if size < total else 0)) as bar:
        spread = (np.arange(size) * total // size).tolist()
        sample = np.concatenate(list(_embed(store, spread, embedder, bar)))
        batches = _embed(store, range(total), embedder, bar) if size < total else [sample]
        build_dense(batches, sample, total, directory / VECTORS_FILE)


def _embed(
    store: PassageStore, numbers: Sequence[int], embedder: Embedder, bar: "tqdm[Any]"
) -> Iterator[NDArray[np.float32]]:
    for start in range(0, len(numbers), _EMBED_BATCH):
        batch = numbers[start : start + _EMBED_BATCH]
        yield embedder.embed([store[number].search_text for number in batch])
        bar.update(len(batch))


def _bar(options: BuildOptions, **keywords: Any) -> "tqdm[Any]":
    return tqdm(disable=not options.progress, leave=False, **keywords)
