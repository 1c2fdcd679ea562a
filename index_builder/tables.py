"""Rows of .jsonl, .csv and .parquet files, with the line each came from."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from refdraft.index_builder.documents import Columns, Problem, Report

Row = tuple[int, Mapping[str, Any]]  # line, cells by column
Advance = Callable[[int], object]  # told how many bytes have just been read

_PARQUET_ROWS = 256  # held at a time


def read_jsonl(path: Path, columns: Columns, report: Report, advance: Advance) -> Iterator[Row]:
    """One JSON object a line; a line that is none is reported, and the next one read."""
    with path.open("rb") as stream:
        for line, raw in enumerate(_lines(stream, advance), start=1):
            if not raw.strip():
                continue
            try:
                row = json.loads(raw.decode("utf-8"))
            except UnicodeDecodeError as error:
                report(Problem(str(path), line, f"not UTF-8 (byte 0x{raw[error.start]:02x})"))
            except (ValueError, RecursionError) as error:
                report(Problem(str(path), line, f"broken JSON ({error})"))
            else:
                if isinstance(row, dict):
                    yield line, row
                else:
                    report(Problem(str(path), line, "not a JSON object"))


def read_csv(path: Path, columns: Columns, report: Report, advance: Advance) -> Iterator[Row]:
    """Comma-separated cells under a header line.

    After an undecodable line or a broken quote nobody knows where the next row starts, so the file ends there.
    """
    csv.field_size_limit(sys.maxsize)  # the module's own limit, 128 KiB, is shorter than many a text
    with path.open("rb") as stream:
        rows = csv.reader((raw.decode("utf-8") for raw in _lines(stream, advance)), strict=True)
        try:
            header = next(rows, [])
            if missing := columns.missing(header):
                report(Problem.no_column(str(path), 1, missing, header))
                return
            for cells in rows:
                if len(cells) == len(header):
                    yield rows.line_num, dict(zip(header, cells, strict=True))
                elif cells:
                    what = f"{len(cells)} cells under {len(header)} column names"
                    report(Problem(str(path), rows.line_num, what))
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            what = f"not UTF-8 (byte 0x{byte:02x}); the file is read no further"
            report(Problem(str(path), rows.line_num + 1, what))
        except csv.Error as error:
            report(Problem(str(path), rows.line_num, f"broken CSV ({error}); the file is read no further"))


def read_parquet(path: Path, columns: Columns, report: Report, advance: Advance) -> Iterator[Row]:
    """Rows of a Parquet file, only the columns asked for; lines are row numbers from 1."""
    try:
        import pyarrow.parquet
    except ImportError:
        remedy = "pip install 'refdraft[parquet]', or -e '.[parquet]' in a checkout"
        report(Problem(str(path), 1, f"reading .parquet needs pyarrow: {remedy}"))
        return
    row = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if missing := columns.missing(names):
                report(Problem.no_column(str(path), 1, missing, names))
                return
            wanted = {columns.id or "id", columns.text, columns.title or "title", *columns.metadata}
            present = [name for name in names if name in wanted]
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=present):
                for cells in batch.to_pylist():
                    row += 1
                    yield row, cells
                advance(path.stat().st_size * batch.num_rows // file.metadata.num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        first_line = str(error).splitlines()[0]
        report(Problem(str(path), row + 1, f"broken Parquet ({first_line}); the file is read no further"))


def _lines(stream: BinaryIO, advance: Advance) -> Iterable[bytes]:
    for number, raw in enumerate(stream):
        advance(len(raw))
        yield raw.removeprefix(b"\xef\xbb\xbf") if number == 0 else raw
