"""Drafting methods measured without a model: a recorded output stands for what the target would choose."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from refdraft.decoder.automaton import SuffixAutomaton
from refdraft.decoder.drafter import Drafter
from refdraft.decoder.odds import AcceptanceRates
from refdraft.decoder.verify import verify

ORACLE_SPAN = 16  # tokens the copy-oracle may copy at a step
_LOOKUP_TOKENS = 10
_LOOKUP_NGRAMS = (3, 2, 1)


@dataclass(frozen=True, slots=True)
class Trace:
    """Token ids of one recorded generation."""

    prompt: Sequence[int]
    references: Sequence[Sequence[int]]
    output: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Totals over all traces. The first token of each output counts as the prefill's."""

    tokens: int = 0
    steps: int = 0
    drafted: int = 0

    @property
    def tokens_per_step(self) -> float:
        """Committed tokens divided by steps; 0 without a step."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def drafted_per_step(self) -> float:
        """Draft tokens verified at a step on average."""
        return self.drafted / self.steps if self.steps else 0.0


class Method(Protocol):
    """A way of drafting, on one trace."""

    def step(self, position: int) -> tuple[int, int]:
        """Draft at `position` of the output: (draft tokens, how many of them the output holds next)."""


def replay(traces: Sequence[Trace], method: Callable[[Trace], Method]) -> Iterator[ReplayResult]:
    """Run a method over traces, yielding the totals after each."""
    tokens = steps = drafted = 0
    for trace in traces:
        run, position = method(trace), 1
        while position < len(trace.output):
            nodes, accepted = run.step(position)
            steps, drafted = steps + 1, drafted + nodes
            position += accepted + 1
        tokens += max(0, len(trace.output) - 1)
        yield ReplayResult(tokens, steps, drafted)


class RefdraftMethod:
    """This project's drafter, drafting all that it finds up to a budget as if width were free.

    Args:
        trace: what to replay.
        budget: draft nodes a step at most.
        rates: shared by the traces of a run, as requests to a server share them.
    """

    def __init__(self, trace: Trace, *, budget: int, rates: AcceptanceRates) -> None:
        size = 1 + max(max(ids, default=0) for ids in (trace.prompt, trace.output, *trace.references))
        self._drafter = Drafter(trace.prompt, {"references": trace.references}, vocabulary_size=size, rates=rates)
        self._output, self._budget = trace.output, budget
        self._drafter.observe(trace.output[:1])

    def step(self, position: int) -> tuple[int, int]:
        """See `Method`."""
        draft = self._drafter.propose(self._budget)
        truth = self._output[position:]
        committed: list[int] = []
        walk = verify(draft, lambda _: truth[len(committed)])
        while len(committed) < len(truth):
            token, node = next(walk)
            committed.append(token)
            if node is None:
                break
        self._drafter.observe(committed)
        return len(draft), len(committed) - 1


class PromptLookupMethod:
    """Prompt lookup (Saxena 2023): what followed the first occurrence of the last 3, else 2, else 1 tokens.

    The context is the references, the prompt and the output so far, as a RAG prompt holds them.
    """

    def __init__(self, trace: Trace, *, budget: int) -> None:
        self._limit = min(_LOOKUP_TOKENS, budget)
        self._context = [token for reference in trace.references for token in reference]
        self._context += trace.prompt
        self._start = len(self._context)
        self._context += trace.output
        self._first: dict[tuple[int, ...], int] = {}  # n-gram -> index behind its first occurrence
        self._indexed = 0  # n-grams that end before this index are in the table

    def step(self, position: int) -> tuple[int, int]:
        """See `Method`."""
        end = self._start + position
        self._index(end)
        for size in _LOOKUP_NGRAMS:
            start = self._first.get(tuple(self._context[max(0, end - size) : end]))
            if start is not None and end >= size:
                draft = self._context[start : min(start + self._limit, end)]
                return len(draft), _common_prefix(draft, self._context[end:])
        return 0, 0

    def _index(self, end: int) -> None:
        """Enter the n-grams that have a token behind them: those that end before `end`."""
        for stop in range(self._indexed + 1, end):
            for size in _LOOKUP_NGRAMS:
                if stop >= size:
                    self._first.setdefault(tuple(self._context[stop - size : stop]), stop)
        self._indexed = max(self._indexed, end - 1)


class CopyOracleMethod:
    """The bound for drafting by copying one span: at each step the best one of all sources is known."""

    def __init__(self, trace: Trace, *, budget: int) -> None:
        self._limit = min(ORACLE_SPAN, budget)
        self._output, self._known = trace.output, 0
        self._text = SuffixAutomaton()
        for document in trace.references:
            self._text.add_document(document)
        for token in trace.prompt:  # the output will run on behind it without a border
            self._text.append(token)

    def step(self, position: int) -> tuple[int, int]:
        """See `Method`."""
        for token in self._output[self._known : position]:
            self._text.append(token)
        self._known = position
        state = length = 0
        for token in self._output[position : position + self._limit]:
            if token not in self._text.next[state]:
                break
            state, length = self._text.next[state][token], length + 1
        return length, length


def _common_prefix(draft: Sequence[int], truth: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(draft, truth, strict=False)) if a != b), min(len(draft), len(truth)))
