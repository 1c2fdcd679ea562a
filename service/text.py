"""From committed tokens to text that can be shown: whole characters, stop strings, where each token lies."""

from collections.abc import Iterable, Sequence

from refdraft.retriever.tokenizer import Tokenizer


class OutputText:
    """The text of an output that grows token by token.

    A token may end in the middle of a character; its text is known only once the character is whole. So
    `spans` may lag behind the tokens pushed, and tokens that share characters share their span.

    Attributes:
        token_ids: all tokens pushed.
        text: all text that is certain.
        spans: half-open character range in `text` of each token whose text is certain.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.token_ids: list[int] = []
        self.text = ""
        self.spans: list[tuple[int, int]] = []
        self._before = 0  # tokens from here on are decoded along, since some decoders mind what stands before

    def push(self, token: int) -> None:
        """Take the next token."""
        self.token_ids.append(token)
        piece = self._unsettled()
        if piece and not piece.endswith("\ufffd"):
            self._settle(piece)

    def finish(self) -> None:
        """No token comes any more: bytes of a character that was never completed become U+FFFD."""
        self._settle(self._unsettled())

    def cut(self, length: int) -> None:
        """Keep `length` characters, and the tokens that contributed to them."""
        self.text = self.text[:length]
        kept = [(start, min(end, length)) for start, end in self.spans if start < length]
        self.spans = kept
        del self.token_ids[len(kept) :]

    def _unsettled(self) -> str:
        """The text of the tokens behind those whose text is certain."""
        known = self._tokenizer.decode(self.token_ids[self._before : len(self.spans)])
        return self._tokenizer.decode(self.token_ids[self._before :])[len(known) :]

    def _settle(self, piece: str) -> None:
        start, self._before = len(self.text), len(self.spans)
        self.text += piece
        self.spans += [(start, len(self.text))] * (len(self.token_ids) - len(self.spans))


class StopStrings:
    """Tells at which token the output first holds one of several strings.

    Args:
        tokenizer: turns token ids into text.
        stops: non-empty strings.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._output = OutputText(tokenizer)
        self._stops = stops
        self._longest = max(map(len, stops))

    def __call__(self, token: int) -> bool:
        """Take the next token; True once the text holds a stop string."""
        start = max(0, len(self._output.text) - self._longest + 1)
        self._output.push(token)
        return find_stop(self._output.text, self._stops, start) < len(self._output.text)


def find_stop(text: str, stops: Iterable[str], start: int = 0) -> int:
    """Where the first stop string in `text[start:]` begins; the text's length without one."""
    return min((at for stop in stops if (at := text.find(stop, start)) >= 0), default=len(text))


def unfinished_stop(text: str, stops: Iterable[str]) -> int:
    """Length of the longest end of `text` that more text could complete to a stop string."""
    return max(
        (size for stop in stops for size in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:size])),
        default=0,
    )
