"""The passages of an index, read from memory maps: opening costs nothing, a passage costs its own bytes."""

import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refdraft.errors import IndexFormatError
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPassage:
    """A chunk of a document, cut out exactly: `text` stands in the document at character `start`."""

    document_id: str
    title: str
    text: str
    start: int
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def search_text(self) -> str:
        """What retrievers index: a passage from the middle of a document seldom repeats what it is about."""
        return f"{self.title}\n{self.text}" if self.title else self.text


class PassageStore:
    """Random access to passages by number, 0 to `len(store) - 1`, in the order they were read."""

    def __init__(self, directory: Path, *, documents: int, passages: int, tokens: int, vocabulary_size: int) -> None:
        """Map the files of a directory that hold so many documents, passages and tokens.

        Raises:
            IndexFormatError: They hold another number.
        """
        self._directory = directory
        self._vocabulary_size = vocabulary_size
        self._documents = _records(directory / DOCUMENTS_FILE, DOCUMENT, documents)
        self._passages = _records(directory / PASSAGES_FILE, PASSAGE, passages)
        self._tokens = _records(directory / TOKENS_FILE, token_dtype(vocabulary_size), tokens)
        self._text = _map(directory / TEXT_FILE)
        self._lines = _map(directory / DOCUMENT_LINES_FILE)

    def __len__(self) -> int:
        return len(self._passages)

    def __getitem__(self, number: int) -> StoredPassage:
        """The passage of that number.

        Raises:
            IndexFormatError: The bytes were altered since the index was built.
        """
        _, offset, size, start, _, _ = self._record(number)
        try:
            document = self._document(number)
            return StoredPassage(
                document_id=document["id"],
                title=document["title"],
                text=self._text[offset : offset + size].decode(),
                start=start,
                metadata=document["metadata"],
            )
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise self._damaged(number) from error

    def __iter__(self) -> Iterator[StoredPassage]:
        return (self[number] for number in range(len(self)))

    def token_ids(self, number: int) -> NDArray[np.int32]:
        """Token ids of a passage's text by itself, int32 [tokens], as the index's tokenizer encodes it.

        Raises:
            IndexFormatError: The bytes were altered since the index was built.
        """
        _, _, _, _, offset, count = self._record(number)
        ids = self._tokens[offset : offset + count].astype(np.int32)
        if len(ids) != count or ids.max(initial=0) >= self._vocabulary_size:
            raise self._damaged(number)
        return ids

    def close(self) -> None:
        """Give the text maps back; passages already read stay valid."""
        self._text.close()
        self._lines.close()

    def _record(self, number: int) -> tuple[int, ...]:
        if not 0 <= number < len(self._passages):
            raise IndexError(f"there is no passage {number}, only {len(self)} passages")
        record: tuple[int, ...] = self._passages[number].item()
        return record

    def _document(self, number: int) -> dict[str, Any]:
        offset, size = self._documents[self._record(number)[0]].item()
        document: dict[str, Any] = json.loads(self._lines[offset : offset + size])
        return document

    def _damaged(self, number: int) -> IndexFormatError:
        return IndexFormatError(f"{self._directory}: passage {number} is damaged: rebuild the index")


def _records(path: Path, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    if path.stat().st_size != count * dtype.itemsize:
        raise IndexFormatError(f"{path} does not hold {count} records: rebuild the index")
    return np.memmap(path, dtype=dtype, mode="r") if count else np.empty(0, dtype)


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
