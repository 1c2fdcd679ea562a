"""Files and folders to a stream of documents; whatever cannot be read is reported, never half-read in silence."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from refdraft.errors import InvalidRequestError, NotFoundError, SourceFormatError
from refdraft.index_builder.documents import Columns, Document, Problem, Report
from refdraft.index_builder.html_text import extract_html
from refdraft.index_builder.tables import Advance, Row, read_csv, read_jsonl, read_parquet

_MARKDOWN = frozenset({".md", ".markdown"})
_HTML = frozenset({".html", ".htm"})
_TEXT = frozenset({".txt"}) | _MARKDOWN | _HTML
_TABLES: dict[str, Callable[[Path, Columns, Report, Advance], Iterator[Row]]] = {
    ".jsonl": read_jsonl,
    ".csv": read_csv,
    ".parquet": read_parquet,
}
SUFFIXES = _TEXT | _TABLES.keys()


class Reader:
    """Iterates over the documents of sources, holding one at a time.

    A document of its own file is called by its path below the deepest folder that holds all sources.
    """

    def __init__(self, sources: Sequence[Path], columns: Columns, report: Report, advance: Advance) -> None:
        """List the files to read.

        Args:
            sources: Files and folders; folders are searched recursively, without hidden names and linked folders.
            columns: What to take from tables.
            report: Called with each problem; raise there to stop.
            advance: Called with the number of bytes just read.

        Raises:
            NotFoundError: A source does not exist.
            InvalidRequestError: A source is a file of a kind that cannot be read.
        """
        self._columns = columns
        self._report = report
        self._advance = advance
        self._seen: set[bytes] = set()  # short hashes of the ids so far
        base = _deepest_folder(sources)
        self._files = [file for source in sources for file in _files(source, base)]
        self.total_size = sum(path.stat().st_size for path, _ in self._files if path.exists())  # bytes

    def __iter__(self) -> Iterator[Document]:
        for path, name in self._files:
            table = _TABLES.get(path.suffix.lower())
            try:
                if path.stat().st_size == 0:
                    self._report(Problem(str(path), 1, "empty"))
                else:
                    yield from self._rows(path, name, table) if table else self._text(path, name)
            except OSError as error:
                self._report(Problem(str(path), 1, f"cannot be read ({error.strerror})"))

    def _text(self, path: Path, name: str) -> Iterator[Document]:
        raw = path.read_bytes()
        self._advance(len(raw))
        if b"\0" in raw:
            self._report(Problem(str(path), raw.count(b"\n", 0, raw.index(b"\0")) + 1, "binary"))
            return
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            self._report(Problem(str(path), line, f"not UTF-8 (byte 0x{raw[error.start]:02x})"))
            return
        title = ""
        if path.suffix.lower() in _HTML:
            try:
                title, text = extract_html(text)
            except SourceFormatError as error:
                self._report(Problem(str(path), 1, str(error)))
                return
        elif path.suffix.lower() in _MARKDOWN:
            title = _first_heading(text)
        yield from self._checked(path, 1, Document(id=name, text=text, title=title))

    def _rows(
        self, path: Path, name: str, read: Callable[[Path, Columns, Report, Advance], Iterator[Row]]
    ) -> Iterator[Document]:
        for line, row in read(path, self._columns, self._report, self._advance):
            if missing := self._columns.missing(row):
                self._report(Problem.no_column(str(path), line, missing, row))
            elif not isinstance(row[self._columns.text], str):
                self._report(Problem(str(path), line, f"column {self._columns.text!r} holds no text"))
            else:
                yield from self._checked(path, line, self._document(row, f"{name}:{line}"))

    def _document(self, row: Mapping[str, Any], place: str) -> Document:
        columns = self._columns
        return Document(
            id=_cell(row.get(columns.id or "id")) or place,
            text=row[columns.text],
            title=_cell(row.get(columns.title or "title")),
            metadata={column: _cell(row[column]) for column in columns.metadata},
        )

    def _checked(self, path: Path, line: int, document: Document) -> Iterator[Document]:
        if "\0" in document.text:
            self._report(Problem(str(path), line, "binary"))
        elif not document.text.strip():
            self._report(Problem(str(path), line, "empty"))
        elif _has_surrogate(document):
            self._report(Problem(str(path), line, "holds a lone surrogate, which is no text"))
        elif (digest := hashlib.blake2b(document.id.encode(), digest_size=12).digest()) in self._seen:
            self._report(Problem(str(path), line, f"another document has the id {document.id!r} already"))
        else:
            self._seen.add(digest)
            yield document


def _deepest_folder(sources: Sequence[Path]) -> Path:
    """The deepest folder that holds all sources; a single folder holds itself."""
    folders = [_absolute(source if source.is_dir() else source.parent) for source in sources]
    return Path(os.path.commonpath(folders))


def _absolute(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))  # not resolve(): names are as given, links not followed


def _files(source: Path, base: Path) -> Iterator[tuple[Path, str]]:
    """Files of a source that ought to be readable, in a fixed order, each with its path below `base`."""
    if source.is_file():
        if source.suffix.lower() not in SUFFIXES:
            kinds = " ".join(sorted(SUFFIXES))
            raise InvalidRequestError(f"{source} is none of {kinds}", field="SOURCE")
        yield source, _name(_absolute(source).relative_to(base))
        return
    if not source.is_dir():
        raise NotFoundError(f"{source} does not exist: name a file or folder to index")
    prefix = _absolute(source).relative_to(base)
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        hidden = any(part.startswith(".") for part in name.parts)
        dangling = path.is_symlink() and not path.exists()
        if path.suffix.lower() in SUFFIXES and (path.is_file() or dangling) and not hidden:
            yield path, _name(prefix / name)


def _first_heading(markdown: str) -> str:
    heading = re.search(r"^#[ \t]+(\S.*)", markdown, re.MULTILINE)
    if not heading:
        return ""
    title = heading[1].rstrip()
    unmarked = title.rstrip("#")  # `# Title #` is `# Title`, but `# C#` keeps its own
    return unmarked.rstrip() if unmarked.endswith((" ", "\t")) else title


def _name(path: Path) -> str:
    return os.fsencode(path.as_posix()).decode("utf-8", "replace")  # a file's name may be any bytes


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _has_surrogate(document: Document) -> bool:
    values = (document.id, document.title, document.text, *document.metadata.values())
    try:
        "\n".join(values).encode()
    except UnicodeEncodeError:
        return True
    return False
