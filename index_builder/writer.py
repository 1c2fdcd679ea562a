"""Writes the files of an index, one passage at a time."""

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np

from refdraft.index_builder.chunking import Chunk
from refdraft.index_builder.documents import Document
from refdraft.retriever.manifest import (
    DOCUMENT,
    DOCUMENT_LINES_FILE,
    DOCUMENTS_FILE,
    PASSAGE,
    PASSAGES_FILE,
    TEXT_FILE,
    TOKENS_FILE,
    token_dtype,
)


class PassageWriter:
    """Appends documents and their passages; counts what it wrote."""

    def __init__(self, directory: Path, vocabulary_size: int) -> None:
        self.documents = 0
        self.passages = 0
        self.tokens = 0
        self._token_dtype = token_dtype(vocabulary_size)
        self._exit = ExitStack()
        self._text = self._open(directory / TEXT_FILE)
        self._document_records = self._open(directory / DOCUMENTS_FILE)
        self._lines = self._open(directory / DOCUMENT_LINES_FILE)
        self._passage_records = self._open(directory / PASSAGES_FILE)
        self._token_ids = self._open(directory / TOKENS_FILE)

    def add(self, document: Document, chunks: Iterable[Chunk]) -> None:
        """Append a document and the chunks of its text, in order of their start."""
        line = {"id": document.id, "title": document.title, "metadata": dict(document.metadata)}
        raw = json.dumps(line, ensure_ascii=False).encode()
        self._document_records.write(np.array((self._lines.tell(), len(raw)), dtype=DOCUMENT).tobytes())
        self._lines.write(raw + b"\n")
        base = self._text.tell()
        done = size = 0  # characters whose bytes are counted, and those bytes
        for chunk in chunks:
            size += len(document.text[done : chunk.start].encode())
            done = chunk.start
            self._add_passage(chunk, base + size, len(document.text[chunk.start : chunk.end].encode()))
        self._text.write(document.text.encode())
        self.documents += 1

    def _add_passage(self, chunk: Chunk, text_offset: int, text_size: int) -> None:
        count = len(chunk.token_ids)
        record = (self.documents, text_offset, text_size, chunk.start, self.tokens, count)
        self._passage_records.write(np.array(record, dtype=PASSAGE).tobytes())
        self._token_ids.write(chunk.token_ids.astype(self._token_dtype).tobytes())
        self.tokens += count
        self.passages += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _open(self, path: Path) -> BinaryIO:
        return self._exit.enter_context(path.open("wb"))
