import json
import os
import sys
import time
from pathlib import Path

import pytest

from refdraft.errors import InvalidRequestError, NotFoundError
from refdraft.index_builder.documents import Columns, Document, Problem
from refdraft.index_builder.readers import Reader
from tests.index_builder.conftest import Read


def test_a_folder_is_read_recursively_in_order(tmp_path: Path, read: Read) -> None:
    (tmp_path / "b" / "deep").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    for name in ("c.txt", "b/deep/x.md", "b/a.TXT", ".git/no.txt", "picture.png"):
        (tmp_path / name).write_text(f"text of {name}")
    documents, problems = read()
    assert [document.id for document in documents] == ["b/a.TXT", "b/deep/x.md", "c.txt"]
    assert problems == []


def test_text_stays_as_it_is(tmp_path: Path, read: Read) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffline\r\n\U0001f600 end\r\n".encode())
    assert read("a.txt")[0] == [Document(id="a.txt", text="line\r\n\U0001f600 end\r\n")]


def test_markdown_takes_its_first_heading_as_title(tmp_path: Path, read: Read) -> None:
    (tmp_path / "a.md").write_text("intro\n\n# The *title* #\n\n## Part\n")
    (tmp_path / "b.md").write_text("no heading, #hashtag")
    (tmp_path / "c.md").write_bytes(b"# About C#\r\ntext")
    assert [document.title for document in read()[0]] == ["The *title*", "", "About C#"]


def test_html_keeps_what_a_reader_sees(tmp_path: Path, read: Read) -> None:
    (tmp_path / "a.html").write_text(
        "<!doctype html><html><head><title>A &amp;\n B</title><style>p {}</style></head>"
        "<body><h1>Head</h1><p>One  <b>bold</b>\n word&nbsp;&lt;3</p><script>var x = '<p>no</p>'</script>"
        "<ul><li>first<li>second</ul><pre>  keep\n    this</pre>after<br>break</body></html>"
    )
    document = read("a.html")[0][0]
    assert document.title == "A & B"
    assert document.text.split("\n\n") == [
        "Head",
        "One bold word <3",
        "first\nsecond",
        "  keep\n    this",
        "after\nbreak",
    ]


@pytest.mark.parametrize(
    "page", ["<p", "text <b", "<title>only", "<pre></pre></pre>x", "<script>never closed", "</div>a"]
)
def test_broken_html_is_read_without_an_error(page: str, tmp_path: Path, read: Read) -> None:
    (tmp_path / "a.html").write_text(page)
    read("a.html")


def test_an_open_head_does_not_hide_the_page(tmp_path: Path, read: Read) -> None:
    (tmp_path / "a.html").write_text("<head><title>T</title><body>shown")
    assert read("a.html")[0][0].text == "shown"


@pytest.mark.parametrize(
    "tail", ["<!-- never closed <p>in a comment</p>", "<a href='never closed", "</p", "<!doctype never closed"]
)
def test_html_shows_nothing_of_markup_that_never_ends(tail: str, tmp_path: Path, read: Read) -> None:
    (tmp_path / "a.html").write_text(f"<p>shown &amp; kept {tail}")
    assert read("a.html")[0][0].text == "shown & kept"


@pytest.mark.parametrize(
    "unit", ["<!--", "<a ", '<a "', "<a b='\"", "</", "<?", "<script></", "<svg>" * 9 + "</head>" * 9]
)
def test_hostile_html_takes_no_longer_than_its_size(unit: str, tmp_path: Path, read: Read) -> None:
    (tmp_path / "a.html").write_text(unit * (200_000 // len(unit)))
    started = time.process_time()
    read("a.html")
    assert time.process_time() - started < 5  # minutes if each `<` is searched from anew


@pytest.mark.parametrize("page", ["<![nonsense[x]]>", f"&#{'9' * 5000};"])
def test_html_beyond_the_parser_is_reported(page: str, tmp_path: Path, read: Read) -> None:
    (tmp_path / "a.html").write_text(page)
    (tmp_path / "b.html").write_text("fine")
    documents, problems = read()
    assert [document.text for document in documents] == ["fine"]
    assert len(problems) == 1
    assert problems[0].startswith("a.html:1: broken HTML (")


def test_jsonl_rows_and_each_bad_line(tmp_path: Path, read: Read) -> None:
    lines = [
        b'{"id": 7, "text": "one", "title": "T", "year": 1999}',
        b"",
        b'{"text": "two", "year": null}',
        b'{"text": ',
        b"[1]",
        b'{"body": "x", "year": 1}',
        b'{"text": "\xff", "year": 1}',
        b'{"text": 5, "year": 1}',
        b'{"text": " ", "year": 1}',
        b'{"text": "\\ud800", "year": 1}',
        b'{"text": "a\\u0000b", "year": 1}',
        b'{"id": "7", "text": "again", "year": 1}',
        b"[" * 100_000,
        b'{"text": "last", "year": 1}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    documents, problems = read("a.jsonl", columns=Columns(metadata=("year",)))
    assert documents == [
        Document(id="7", text="one", title="T", metadata={"year": "1999"}),
        Document(id="a.jsonl:3", text="two", metadata={"year": ""}),
        Document(id="a.jsonl:14", text="last", metadata={"year": "1"}),
    ]
    assert [problem.split(": ")[0] for problem in problems] == [f"a.jsonl:{line}" for line in range(4, 14)]
    for problem, what in zip(
        problems,
        ("JSON", "object", "no column 'text'", "0xff", "no text", "empty", "surrogate", "binary", "id '7'", "JSON"),
        strict=True,
    ):
        assert what in problem


def test_csv_cells_may_span_lines_and_be_long(tmp_path: Path, read: Read) -> None:
    long = "word " * 50_000
    (tmp_path / "a.csv").write_text(f'name,body\na,"two\nlines, ""quoted"""\nb\nc,{long}\n', encoding="utf-8-sig")
    documents, problems = read("a.csv", columns=Columns(id="name", text="body"))
    assert [(document.id, document.text) for document in documents] == [
        ("a", 'two\nlines, "quoted"'),
        ("c", long),
    ]
    assert problems == ["a.csv:4: 1 cells under 2 column names"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"text\nfine\n\xe9\nlost\n", "a.csv:3: not UTF-8 (byte 0xe9); the file is read no further"),
        (b'text\nfine\n"a"b\nlost\n', "a.csv:3: broken CSV"),
        (b'text\nfine\n"never closed\n', "a.csv:3: broken CSV"),
    ],
)
def test_csv_is_not_read_past_the_break(content: bytes, problem: str, tmp_path: Path, read: Read) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    documents, problems = read("a.csv")
    assert [document.text for document in documents] == ["fine"]
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_a_table_without_the_column_is_reported_once(tmp_path: Path, read: Read) -> None:
    (tmp_path / "a.csv").write_text("body,id\nx,1\ny,2\n")
    assert read("a.csv") == ([], ["a.csv:1: no column 'text'; there are: body, id"])


def test_parquet(tmp_path: Path, read: Read) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs refdraft[parquet]")
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table(
        {"id": [1, 2, 3], "text": ["one", None, "three"], "lang": ["en", "de", None], "rest": [0, 0, 0]}
    )
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    documents, problems = read("a.parquet", columns=Columns(metadata=("lang",)))
    assert [(document.id, document.text, document.metadata) for document in documents] == [
        ("1", "one", {"lang": "en"}),
        ("3", "three", {"lang": ""}),
    ]
    assert problems == ["a.parquet:2: column 'text' holds no text"]
    assert read("a.parquet", columns=Columns(text="body"))[1][0].startswith("a.parquet:1: no column 'body'")
    whole = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(whole[: len(whole) // 2])
    documents, problems = read("a.parquet")
    assert documents == []
    assert "broken Parquet" in problems[0]


def test_parquet_without_its_library_is_one_problem_of_many(
    tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    (tmp_path / "b.txt").write_text("fine")
    documents, problems = read()
    assert [document.id for document in documents] == ["b.txt"]
    assert len(problems) == 1
    assert problems[0].startswith("a.parquet:1: reading .parquet needs pyarrow: pip install 'refdraft[parquet]'")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "a.txt:1: empty"),
        (b" \n\t\r\n", "a.txt:1: empty"),
        (b"one\ntwo\n\xe9", "a.txt:3: not UTF-8 (byte 0xe9)"),
        (b"\x89PNG\r\n\x1a\n\0\0", "a.txt:3: binary"),
        (b"one\ntw\0o", "a.txt:2: binary"),
        ("utf-16".encode("utf-16"), "a.txt:1: binary"),
    ],
)
def test_a_file_that_is_no_text_is_reported(content: bytes, problem: str, tmp_path: Path, read: Read) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    assert read("a.txt") == ([], [problem])


def test_names_that_are_no_text_and_links(tmp_path: Path, read: Read) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("named oddly")
    (tmp_path / "link.txt").symlink_to("nowhere.txt")
    (tmp_path / "loop.md").symlink_to("loop.md")
    (tmp_path / "picture.png").symlink_to("nowhere.png")
    (tmp_path / ".hidden.txt").symlink_to("nowhere.txt")
    (tmp_path / "whole.txt").symlink_to(os.fsdecode(b"caf\xe9.txt"))
    documents, problems = read()
    assert [document.id for document in documents] == ["caf\ufffd.txt", "whole.txt"]
    assert [problem.split(" (")[0] for problem in problems] == [
        "link.txt:1: cannot be read",
        "loop.md:1: cannot be read",
    ]


@pytest.mark.parametrize(
    ("sources", "ids"),
    [
        (["one"], ["a.txt", "deep/a.txt"]),
        (["one/a.txt"], ["a.txt"]),
        (["one", "two"], ["one/a.txt", "one/deep/a.txt", "two/a.txt"]),
        (["two", "one/deep"], ["two/a.txt", "one/deep/a.txt"]),
        (["two", "a.txt"], ["two/a.txt", "a.txt"]),
        (["one/a.txt", "two/../two/a.txt"], ["one/a.txt", "two/a.txt"]),
        (["one/a.txt", "one/deep/a.txt"], ["a.txt", "deep/a.txt"]),
    ],
)
def test_ids_are_paths_below_the_folder_that_holds_all_sources(
    sources: list[str], ids: list[str], tmp_path: Path, read: Read
) -> None:
    for name in ("one/a.txt", "one/deep/a.txt", "two/a.txt", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    documents, problems = read(*sources)
    assert [document.id for document in documents] == ids
    assert problems == []


def test_relative_sources_are_called_the_same(tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here/a.jsonl", "there/a.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text('{"text": "row"}')
    monkeypatch.chdir(tmp_path / "here")
    problems: list[Problem] = []
    reader = Reader([Path(), Path("../there")], Columns(), problems.append, lambda size: None)
    assert [document.id for document in reader] == ["here/a.jsonl:1", "there/a.jsonl:1"]
    assert problems == []


def test_a_file_named_twice_is_indexed_once(tmp_path: Path, read: Read) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.txt").write_text("text")
    documents, problems = read("one", "one/a.txt")
    assert [document.id for document in documents] == ["a.txt"]
    assert problems == ["one/a.txt:1: another document has the id 'a.txt' already"]


def test_sources_that_are_not_there_or_not_readable(tmp_path: Path, read: Read) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(NotFoundError, match="nowhere does not exist"):
        read("nowhere")
    with pytest.raises(InvalidRequestError, match=r"a\.png is none of \.csv"):
        read("a.png")


def test_reading_is_lazy(tmp_path: Path) -> None:
    with (tmp_path / "a.jsonl").open("w") as stream:
        for number in range(1000):
            stream.write(json.dumps({"text": f"row {number}"}) + "\n")
    advanced: list[int] = []
    reader = iter(Reader([tmp_path], Columns(), lambda problem: None, advanced.append))
    next(reader)
    assert len(advanced) == 1
