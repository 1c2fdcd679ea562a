"""Longest-suffix matching in amortised constant time a token.

A suffix automaton (Blumer et al. 1985) over one or more token sequences, built online, as SAM-Decoding
(Hu et al. 2024) uses it for drafting. Building is linear; following the context costs O(1) a token however
long the text is.
"""

from collections.abc import Iterable

BORDER = -1  # stands between documents in `SuffixAutomaton.tokens`; no token id is negative


class SuffixAutomaton:
    """All substrings of a growing text, each state knowing where its strings first ended."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.next: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.end = [-1]  # index in `tokens` of the last token of the state's first occurrence
        self._last = 0

    def add_document(self, tokens: Iterable[int]) -> None:
        """Append a whole document; no match runs across its border."""
        for token in tokens:
            self.append(token)
        self.tokens.append(BORDER)
        self._last = 0

    def append(self, token: int) -> None:
        """Lengthen the last document by one token."""
        position = len(self.tokens)
        self.tokens.append(token)
        transitions, link, length = self.next, self.link, self.length
        state = self._last
        if token in transitions[state]:  # only at the start of a document, where the string is known already
            self._last = self._split(state, token)
            return
        new = self._add_state({}, 0, length[state] + 1, position)
        while state >= 0 and token not in transitions[state]:
            transitions[state][token] = new
            state = link[state]
        if state >= 0:
            link[new] = self._split(state, token)
        self._last = new

    def _split(self, state: int, token: int) -> int:
        """The state for `state`'s longest string plus `token`, cloned out of a longer one if need be."""
        target = self.next[state][token]
        if self.length[target] == self.length[state] + 1:
            return target
        clone = self._add_state(dict(self.next[target]), self.link[target], self.length[state] + 1, self.end[target])
        self.link[target] = clone
        while state >= 0 and self.next[state].get(token) == target:
            self.next[state][token] = clone
            state = self.link[state]
        return clone

    def _add_state(self, transitions: dict[int, int], link: int, length: int, end: int) -> int:
        self.next.append(transitions)
        self.link.append(link)
        self.length.append(length)
        self.end.append(end)
        return len(self.next) - 1


class SuffixMatch:
    """The longest suffix of a context that occurs in an automaton, kept up to date token by token."""

    def __init__(self, automaton: SuffixAutomaton) -> None:
        self._automaton = automaton
        self._state = 0
        self.length = 0  # tokens of the context's suffix that match

    @property
    def end(self) -> int:
        """Index in the automaton's tokens of the match's last token; -1 where nothing matches."""
        return self._automaton.end[self._state]

    def advance(self, token: int) -> None:
        """Take one more token of the context."""
        automaton, state = self._automaton, self._state
        while token not in automaton.next[state]:
            if state == 0:
                self._state = self.length = 0
                return
            state = automaton.link[state]
            self.length = automaton.length[state]
        self._state = automaton.next[state][token]
        self.length += 1

    def settle(self) -> None:
        """Restore the state after the automaton grew: the match may now belong to a clone of its state."""
        automaton = self._automaton
        while self._state and self.length <= automaton.length[automaton.link[self._state]]:
            self._state = automaton.link[self._state]
