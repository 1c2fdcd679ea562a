"""From committed tokens to text that can be shown: whole characters, stop strings, where each token lies."""

from collections.abc import Iterable, Sequence

from refdraft.retriever.tokenizer import Tokenizer

_LONGEST_CHARACTER = 4  # bytes in UTF-8, so also tokens
_LONGEST_WAIT = 16  # tokens that may be pending before some are given up as no text


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
        pending = len(self.token_ids) - len(self.spans)
        if token in self._tokenizer.special_ids and pending == 1:
            self.spans.append((len(self.text), len(self.text)))
            return
        piece = self._unsettled()
        if piece and not piece.endswith("\ufffd"):
            self._settle(piece)
        elif pending % _LONGEST_WAIT == 0:
            self._give_up()

    def finish(self) -> None:
        """No text comes any more: bytes of a character that was never completed become U+FFFD."""
        self._settle(self._unsettled())

    def push_silent(self, token: int) -> None:
        """Take a token that adds no text, whatever the tokenizer makes of it; after `finish` only."""
        self.token_ids.append(token)
        self._settle("")

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

    def _settle(self, piece: str, end: int | None = None) -> None:
        """Take `piece` as the text of the pending tokens before `end`, by default of all."""
        start, self._before = len(self.text), len(self.spans)
        self.text += piece
        self.spans += [(start, len(self.text))] * (len(self.token_ids[:end]) - len(self.spans))

    def _give_up(self) -> None:
        """Settle a long run of bytes that are no text, which would else be decoded anew with every token.

        The last of them may still begin a character. What stands before is certain if no character spans the two,
        which shows in that they give the same text apart.
        """
        special, decode = self._tokenizer.special_ids, self._tokenizer.decode
        text = [place for place in range(len(self.spans), len(self.token_ids)) if self.token_ids[place] not in special]
        if len(text) <= _LONGEST_CHARACTER:
            return
        end = text[-_LONGEST_CHARACTER]
        tail = decode(self.token_ids[end:])
        piece = self._unsettled()
        known = decode(self.token_ids[self._before : len(self.spans)])
        if decode(self.token_ids[self._before : end])[len(known) :] + tail == piece:
            self._settle(piece[: len(piece) - len(tail)], end)


class StopStrings:
    """Decides where stop strings end one output, and where its text is cut.

    The output ends at the first token after which its text holds a stop string, and is cut where the leftmost of
    those that it holds then begins. A stop string that is complete within the first `min_tokens` tokens is text like
    any other; one that a later token completes counts, even if it began before.

    Args:
        tokenizer: turns token ids into text.
        stops: non-empty strings.
        min_tokens: tokens before stop strings count.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], min_tokens: int = 0) -> None:
        self.strings = stops
        self._output = OutputText(tokenizer)
        self._min_tokens = min_tokens
        self._cut: int | None = None

    def __call__(self, token: int) -> bool:
        """Take the next token; True once the output is to end."""
        known = len(self._output.text)
        self._output.push(token)
        return self._search(known)

    def finish(self) -> int | None:
        """No text comes any more: the length in characters to cut the output to; None leaves it whole.

        Bytes of an unfinished character become text only now, and may complete a stop string.
        """
        if self._cut is None:
            known = len(self._output.text)
            self._output.finish()
            self._search(known)
        return self._cut

    def _search(self, known: int) -> bool:
        """Look for stop strings that end behind character `known`: no other can be new."""
        if len(self._output.token_ids) > self._min_tokens:
            self._cut = find_stop(self._output.text, self.strings, known)
        return self._cut is not None


def find_stop(text: str, stops: Iterable[str], known: int = 0) -> int | None:
    """Where the leftmost of the stop strings that end behind character `known` begins; None without one."""
    begins = (text.find(stop, max(0, known - len(stop) + 1)) for stop in stops)
    return min((begin for begin in begins if begin >= 0), default=None)


def unfinished_stop(text: str, stops: Iterable[str]) -> int:
    """Length of the longest end of `text` that more text could complete to a stop string."""
    return max(
        (size for stop in stops for size in range(1, min(len(stop), len(text) + 1)) if text.endswith(stop[:size])),
        default=0,
    )
