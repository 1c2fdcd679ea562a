"""What the corpus is made of: the passages of four data sets among much other text of this machine."""

import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

SUFFIXES = (".txt", ".md", ".rst", ".html", ".py", ".pod")
SMALLEST, LARGEST = 400, 200_000  # characters of a text that is taken
ROOTS = (
    ("documentation", (Path("/usr/share/doc"), Path("/usr/share/perl"))),
    ("manual pages", (Path("/usr/share/man"),)),
    ("packages", tuple(Path(folder) for folder in sys.path if folder.endswith("site-packages"))),
    ("standard library", (Path(sys.base_prefix) / "lib",)),
)

Row = dict[str, str]  # "id" and "text"


def read_lines(path: Path) -> Iterator[Any]:
    """The objects of a file of JSON lines."""
    return map(json.loads, path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))


def whole_lines(path: Path) -> list[Any]:
    """The same of a file that a stopped run may have left unfinished or not begun; half a last line is cut off."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
    return list(map(json.loads, text.split("\n")[:-1]))


def data_rows(data: Path) -> Iterator[Row]:
    """The passages of LLMA's and MTRAG's traces, XQuAD's, and those in Spec-Bench's RAG prompts."""
    for name in ("rag_llma", "rag_mtrag"):
        for trace in read_lines(data / "traces" / f"{name}.jsonl"):
            for reference in trace["references"]:
                yield {"id": f"{name}/{reference['id']}", "text": reference["text"]}
    articles = json.loads((data / "xquad" / "xquad.en.json").read_text(encoding="utf-8"))["data"]
    for article in articles:
        for number, paragraph in enumerate(article["paragraphs"]):
            yield {"id": f"xquad/{article['title']}/{number}", "text": paragraph["context"]}
    for question in read_lines(data / "spec_bench" / "question.jsonl"):
        if question["category"] == "rag":
            yield {"id": f"spec_bench/{question['question_id']}", "text": question["turns"][0]}


def machine_rows(characters: int) -> Iterator[Row]:
    """Installed text, `characters` of it from each of `ROOTS` where there is as much."""
    for _, folders in ROOTS:
        left = characters
        for path in _files(folders):
            text = _read(path)[:LARGEST]
            if len(text) >= SMALLEST:
                yield {"id": str(path), "text": text}
                left -= len(text)
            if left <= 0:
                break


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Write rows, each text once, in the first row that holds it."""
    seen: set[str] = set()
    with path.open("w", encoding="utf-8") as stream:
        for row in rows:
            if row["text"] not in seen:
                seen.add(row["text"])
                stream.write(json.dumps(row) + "\n")


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            name = path.name.removesuffix(".gz")
            if path.is_file() and (name.endswith(SUFFIXES) or path.match("/usr/share/man/man*/*")):
                yield path


def _read(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, UnicodeDecodeError):  # unreadable, damaged or not UTF-8
        return ""
