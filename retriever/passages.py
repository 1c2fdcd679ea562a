"""The passages of an index, read from memory maps: opening costs nothing, a passage costs its own bytes."""

import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
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
    SUFFIXES_FILE,
    TEXT_FILE,
    TOKENS_FILE,
    suffix_dtype,
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


@dataclass(frozen=True, slots=True)
class TokenStore:
    """All passages' tokens as one text, and the order of its suffixes that `manifest.py` describes.

    The two large arrays are memory-mapped. Bytes altered since the index was built go unseen: what reads the arrays
    must take any value.

    Attributes:
        tokens: uint16 or uint32 [tokens], passage after passage.
        suffixes: uint32 or uint64 [tokens], indices of `tokens`.
        starts: int64 [passages], the first token of each passage; checked: ascending from 0 to at most `tokens`.
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    suffixes: NDArray[np.unsignedinteger[Any]]
    starts: NDArray[np.int64]


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
        self.tokens: NDArray[np.unsignedinteger[Any]]  # uint16 or uint32 [tokens], of all passages
        self.tokens = _records(directory / TOKENS_FILE, token_dtype(vocabulary_size), tokens)
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
        ids = self.tokens[offset : offset + count].astype(np.int32)
        if len(ids) != count or ids.max(initial=0) >= self._vocabulary_size:
            raise self._damaged(number)
        return ids

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first token of each passage, int64 [passages], ascending; read from all records at the first use.

        Raises:
            IndexFormatError: The bytes were altered since the index was built.
        """
        starts = self._passages["token_offset"].astype(np.int64)
        bounds = np.concatenate([[0], starts, [len(self.tokens)]])
        if starts[:1].any() or (bounds[1:] < bounds[:-1]).any():
            raise IndexFormatError(f"{self._directory / PASSAGES_FILE} is damaged: rebuild the index")
        return starts

    @cached_property
    def token_store(self) -> TokenStore:
        """The tokens of all passages, to be searched as one text.

        Raises:
            IndexFormatError: suffixes.bin is not there in full, or passages.bin was altered.
        """
        count = len(self.tokens)
        suffixes = _records(self._directory / SUFFIXES_FILE, suffix_dtype(count), count)
        return TokenStore(self.tokens, suffixes, self.starts)

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
    return np.asarray(np.memmap(path, dtype=dtype, mode="r")) if count else np.empty(0, dtype)


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
