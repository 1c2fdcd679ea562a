"""The readable text of an HTML page."""

import re
from html.parser import HTMLParser

from refdraft.errors import SourceFormatError

_HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "head"})
_PARAGRAPHS = frozenset(
    {"article", "blockquote", "h1", "h2", "h3", "h4", "h5", "h6", "p", "pre", "section", "table", "ul", "ol"}
)
_LINES = frozenset({"aside", "body", "br", "dd", "div", "dl", "dt", "footer", "form", "header", "hr"}) | {
    *("li", "main", "nav", "td", "th", "tr")
}


def extract_html(page: str) -> tuple[str, str]:
    """Title and text of a page: scripts and styles dropped, blocks on lines of their own, entities resolved.

    What an unclosed comment or tag at the end swallows is not shown, as in a browser.

    Raises:
        SourceFormatError: The page is beyond the parser, such as for a number of 5,000 digits as an entity.
    """
    parser = _TextParser()
    try:
        parser.feed(page)
        # Left over is text, or markup that never ends. The latter close() would scan again at every `<` in it.
        if not parser.rawdata.startswith("<"):
            parser.close()
    except (AssertionError, ValueError) as error:  # all that html.parser raises, if rarely
        raise SourceFormatError(f"broken HTML ({error})") from error
    return " ".join("".join(parser.title).split()), parser.text()


class _TextParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self._pieces: list[str] = []
        self._hidden: list[str] = []  # open elements whose text is not shown
        self._in_title = False
        self._verbatim = 0  # depth of <pre>

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = True
        elif tag in _HIDDEN and tag not in self._hidden:
            self._hidden.append(tag)
        elif tag == "body":
            self._hidden.clear()  # a page may leave its <head> open
        self._verbatim += tag == "pre"
        self._break(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        self._verbatim = max(0, self._verbatim - (tag == "pre"))
        self._break(tag)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            self._pieces.append(data if self._verbatim else self._collapsed(data))

    def text(self) -> str:
        """Everything shown so far, with at most one empty line between paragraphs."""
        text = re.sub(r"(?<![^\S\n])[^\S\n]++\n", "\n", "".join(self._pieces))
        return re.sub(r"\n{3,}", "\n\n", text).strip()

    def _collapsed(self, data: str) -> str:
        data = re.sub(r"\s+", " ", data)
        at_line_start = not self._pieces or self._pieces[-1].endswith(("\n", " "))
        return data.lstrip() if at_line_start else data

    def _break(self, tag: str) -> None:
        if not self._hidden and tag in _PARAGRAPHS | _LINES:
            self._pieces.append("\n\n" if tag in _PARAGRAPHS else "\n")
