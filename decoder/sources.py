"""What spans can be copied from: a request's references, an expected answer, its prompt and its output.

Every source follows the context token by token and proposes the span behind the longest suffix of the
context that it holds. Among several such places the one being copied from already wins, else the first.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from refdraft.decoder.automaton import BORDER, SuffixAutomaton, SuffixMatch
from refdraft.decoder.draft import Origin


@dataclass(frozen=True, slots=True)
class Span:
    """A proposal: `tokens` followed the context's last `match_length` tokens in the source."""

    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    match_length: int

    @property
    def source(self) -> str:
        """Where the span begins; a span of the prompt may run on into the output."""
        return self.origins[0].source


class _Cursor:
    """The place in a growing text that is being copied from.

    It stays where the copy goes on, as long as that place matches as long a suffix as any other does.
    """

    def __init__(self, automaton: SuffixAutomaton) -> None:
        self.automaton = automaton
        self.match = SuffixMatch(automaton)
        self.position = 0  # index of the next token to copy
        self._length = 0  # tokens before `position` that equal the context's suffix

    def advance(self, token: int, *, append: bool = False) -> None:
        """Follow one token of the context; with `append` the text grows by it as well."""
        tokens = self.automaton.tokens
        goes_on = self.position < len(tokens) and tokens[self.position] == token
        self.position, self._length = (self.position + 1, self._length + 1) if goes_on else (0, 0)
        self.match.advance(token)
        if append:
            self.automaton.append(token)
            self.match.settle()
        if self.match.length > self._length:
            self.position, self._length = self.match.end + 1, self.match.length

    def span(self, limit: int) -> tuple[int, ...]:
        """At most `limit` tokens behind the match, up to the document's end; none without a match."""
        if not self.match.length:
            return ()
        tokens = self.automaton.tokens[self.position : self.position + limit]
        return tuple(tokens[: tokens.index(BORDER)] if BORDER in tokens else tokens)


class DocumentSource:
    """Documents that are known from the start, such as references or a prediction."""

    def __init__(self, name: str, documents: Sequence[Sequence[int]]) -> None:
        self.name = name
        automaton = SuffixAutomaton()
        self._starts: list[int] = []  # index in the automaton's tokens at which each document begins
        for document in documents:
            self._starts.append(len(automaton.tokens))
            automaton.add_document(document)
        self._cursor = _Cursor(automaton)

    def advance(self, token: int) -> None:
        """Take one more token of the context."""
        self._cursor.advance(token)

    def propose(self, limit: int) -> Span | None:
        """The span of at most `limit` tokens that continues the longest match; None without one."""
        tokens = self._cursor.span(limit)
        if not tokens:
            return None
        document = bisect_right(self._starts, self._cursor.position) - 1
        offset = self._cursor.position - self._starts[document]
        origins = tuple(Origin(self.name, document, offset + i) for i in range(len(tokens)))
        return Span(tokens, origins, self._cursor.match.length)


class ContextSource:
    """The context itself: the prompt, and the output as it grows; either can be left out."""

    def __init__(self, prompt: Sequence[int], *, copy_prompt: bool, copy_output: bool) -> None:
        self._cursor = _Cursor(SuffixAutomaton())
        self._copy_output = copy_output
        self._output_start = len(prompt) if copy_prompt else 0
        for token in prompt if copy_prompt else ():
            self._cursor.advance(token, append=True)

    def advance(self, token: int) -> None:
        """Take one more token of the output."""
        self._cursor.advance(token, append=self._copy_output)

    def propose(self, limit: int) -> Span | None:
        """The span of at most `limit` tokens that continues the longest earlier match; None without one."""
        tokens = self._cursor.span(limit)
        if not tokens:
            return None
        start, border = self._cursor.position, self._output_start
        origins = tuple(
            Origin("prompt", 0, i) if i < border else Origin("output", 0, i - border)
            for i in range(start, start + len(tokens))
        )
        return Span(tokens, origins, self._cursor.match.length)
