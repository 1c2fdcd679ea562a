"""What readers hand to the builder: documents, and complaints about what is none."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text to index; passages count their character offsets in `text`."""

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which columns (keys, in .jsonl) of a table hold what.

    An id or title of None means the column of that name where there is one; a row without an id is called
    FILE:LINE. A column that is named on purpose must be there.
    """

    id: str | None = None
    text: str = "text"
    title: str | None = None
    metadata: tuple[str, ...] = ()

    def missing(self, present: Collection[str]) -> str | None:
        """The first column that must be there and is not."""
        needed = (self.text, self.id, self.title, *self.metadata)
        return next((name for name in needed if name is not None and name not in present), None)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that cannot be indexed."""

    path: str
    line: int  # from 1; the row, in .parquet
    what: str

    @classmethod
    def no_column(cls, path: str, line: int, name: str, present: Collection[str]) -> "Problem":
        """A table, or one row of .jsonl, lacks a column."""
        return cls(path, line, f"no column {name!r}; there are: {', '.join(present)}")

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


Report = Callable[[Problem], None]  # may raise, to stop reading
