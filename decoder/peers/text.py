"""Tokens in a row and where each of them stands, so that a suffix's occurrences are found without a scan."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence


class Text:
    """A growing text. A place is an index in `tokens`, that of the token behind an occurrence."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._places: defaultdict[int, list[int]] = defaultdict(list)
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self.tokens.append(token)
            self._places[token].append(len(self.tokens))

    def behind(self, suffix: Sequence[int], longest: int) -> Iterator[list[int]]:
        """The places behind the last 1, 2, ... `longest` tokens of `suffix`, until there are none; in rising order.

        Where `suffix` is the text itself, the last place is always the text's own end.
        """
        places = self._places[suffix[-1]] if suffix else []
        for size in range(1, min(longest, len(suffix)) + 1):
            if size > 1:
                token = suffix[-size]
                places = [place for place in places if place >= size and self.tokens[place - size] == token]
            if not places:
                return
            yield places

    def longest_prefix(self, tokens: Sequence[int]) -> int:
        """How many of the first of `tokens` stand in a row anywhere in the text."""
        size, places = 0, self._places[tokens[0]] if tokens else []
        while places:
            size += 1
            if size == len(tokens):
                break
            token = tokens[size]
            places = [place + 1 for place in places if place < len(self.tokens) and self.tokens[place] == token]
        return size
