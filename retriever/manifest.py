"""What an index directory contains, and how to tell that it is whole.

    manifest.json     this file's `Manifest`, with a checksum over itself; written last
    text.bin          the documents' texts, UTF-8, one after the other
    documents.bin     DOCUMENT records: where each document's line starts in documents.jsonl
    documents.jsonl   per document {"id", "title", "metadata"}
    passages.bin      PASSAGE records: document, place in text.bin, characters, place in tokens.bin
    tokens.bin        token ids of all passages, uint16 or uint32 by vocabulary size
    suffixes.bin      places in tokens.bin, sorted by the tokens that stand there; uint32, or uint64 beyond 2**32 tokens
    bm25/             the arrays of bm25s
    vectors.faiss     passage vectors, unless the index was built without

Numbers are little-endian. Everything but the manifest is fixed once written.

suffixes.bin sorts by the SUFFIX_DEPTH tokens from a place on, then by whether the passage goes on behind them, then by
place. A passage's end comes before every token, and nothing is read over it into the next passage.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from refdraft.errors import IndexFormatError, NotFoundError
from refdraft.retriever.bm25 import BM25_MAPPED_FILES, BM25_READ_FILES

FORMAT = "refdraft-index"
FORMAT_VERSION = 2

MANIFEST_FILE = "manifest.json"
TEXT_FILE = "text.bin"
DOCUMENTS_FILE = "documents.bin"
DOCUMENT_LINES_FILE = "documents.jsonl"
PASSAGES_FILE = "passages.bin"
TOKENS_FILE = "tokens.bin"
SUFFIXES_FILE = "suffixes.bin"
BM25_DIRECTORY = "bm25"
VECTORS_FILE = "vectors.faiss"

DOCUMENT = np.dtype([("offset", "<u8"), ("size", "<u4")])  # bytes of documents.jsonl
PASSAGE = np.dtype(
    [
        ("document", "<u4"),
        ("text_offset", "<u8"),  # bytes of text.bin
        ("text_size", "<u4"),
        ("start", "<u8"),  # characters into the document
        ("token_offset", "<u8"),  # tokens of tokens.bin
        ("tokens", "<u4"),
    ]
)
SUFFIX_DEPTH = 16  # tokens


def token_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """The smallest unsigned integer that holds every token id."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


def suffix_dtype(tokens: int) -> np.dtype[Any]:
    """The smallest of uint32 and uint64 that holds every place in so many tokens."""
    return np.dtype("<u4" if tokens <= 1 << 32 else "<u8")


def _bm25(names: Iterable[str]) -> frozenset[str]:
    return frozenset(f"{BM25_DIRECTORY}/{name}" for name in names)


# Parsed by other people's code or read whole: opening checks their hashes. The rest is mapped and bounds-checked
# where it is used, so that opening a large index stays instant; `refdraft index verify` reads it all.
PARSED_FILES = _bm25(BM25_READ_FILES) | {VECTORS_FILE}
_FIXED_FILES = _bm25(BM25_READ_FILES + BM25_MAPPED_FILES) | {
    TEXT_FILE,
    DOCUMENTS_FILE,
    DOCUMENT_LINES_FILE,
    PASSAGES_FILE,
    TOKENS_FILE,
    SUFFIXES_FILE,
}


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Size in bytes and SHA-256 (hexadecimal) of one file."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "FileEntry":
        """Measure a file."""
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return cls(path.stat().st_size, digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an index was built from, and with."""

    documents: int
    passages: int
    tokens: int
    passage_tokens: int  # most tokens a passage may have
    overlap_tokens: int  # most tokens a passage repeats of the one before
    tokenizer_fingerprint: str
    vocabulary_size: int
    embedder: str | None  # None: BM25 only
    dimension: int  # of a vector; 0 without an embedder
    files: Mapping[str, FileEntry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expected = _FIXED_FILES | ({VECTORS_FILE} if self.embedder else set())
        if self.files.keys() != expected:
            odd = ", ".join(sorted(self.files.keys() ^ expected))
            raise IndexFormatError(f"the manifest lists the wrong files ({odd}): rebuild the index")

    @property
    def size(self) -> int:
        """Bytes of all files together, the manifest apart."""
        return sum(entry.size for entry in self.files.values())

    def write(self, directory: Path) -> None:
        """Write `manifest.json`, which makes the directory an index."""
        body = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}
        text = json.dumps({**body, "checksum": _checksum(body)}, indent=2, sort_keys=True)
        (directory / MANIFEST_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Read and check `manifest.json`.

        Raises:
            NotFoundError: The directory does not exist.
            IndexFormatError: It is not an index, is of another version, or its manifest was altered.
        """
        body = _read_body(directory)
        if body.pop("format", None) != FORMAT:
            raise IndexFormatError(f"{directory} is not an index: name a folder made by `refdraft index build`")
        version = body.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise IndexFormatError(
                f"{directory} has index format {version}, this version reads {FORMAT_VERSION}: rebuild it"
            )
        checksum = body.pop("checksum", None)
        if checksum != _checksum({"format": FORMAT, "format_version": version, **body}):
            raise IndexFormatError(f"{directory / MANIFEST_FILE} was altered: rebuild the index")
        try:
            files = {name: FileEntry(**entry) for name, entry in body.pop("files").items()}
            return cls(files=files, **body)
        except (KeyError, TypeError, AttributeError) as error:
            raise IndexFormatError(f"{directory / MANIFEST_FILE} lacks entries: rebuild the index") from error

    def check_sizes(self, directory: Path) -> None:
        """Raise IndexFormatError unless every file is there at its full size."""
        for name, entry in self.files.items():
            path = directory / name
            size = path.stat().st_size if path.is_file() else None
            if size != entry.size:
                found = "is missing" if size is None else f"has {size} bytes instead of {entry.size}"
                raise IndexFormatError(f"{path} {found}: rebuild the index")

    def check_hashes(self, directory: Path, names: Iterable[str]) -> None:
        """Raise IndexFormatError unless the named files hold the bytes that were written."""
        for name in names:
            if FileEntry.of(directory / name) != self.files[name]:
                raise IndexFormatError(f"{directory / name} was altered: rebuild the index")


def listed_files(directory: Path) -> frozenset[str] | None:
    """Names of the files of an index of any version, its manifest apart; None if the directory is no index."""
    try:
        body = _read_body(directory)
    except (NotFoundError, IndexFormatError):
        return None
    return frozenset(body.get("files", ())) if body.get("format") == FORMAT else None


def _read_body(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST_FILE
    if not directory.is_dir():
        raise NotFoundError(f"{directory} does not exist: build it with `refdraft index build`")
    if not path.is_file():
        raise IndexFormatError(f"{directory} has no {MANIFEST_FILE}: name a folder made by `refdraft index build`")
    try:
        body = json.loads(path.read_bytes())
    except ValueError as error:
        raise IndexFormatError(f"{path} is damaged: rebuild the index") from error
    if not isinstance(body, dict):
        raise IndexFormatError(f"{path} is damaged: rebuild the index")
    return body


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
