"""`refdraft demo`: the manual of the Python at hand, indexed, asked and edited; every answer decoded twice.

All of it is real: index, target, server, and a client that knows nothing but the server's address.
"""

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from refdraft.service.options import add_model_options, pipeline_config
from refdraft.service.terminal import Painter, paint, wants_colour
from refdraft.service.types import Completion, Delta, Drafting, GenerateRequest, Reference, Retrieval, Sampling
from refdraft.service.validation import Limits, validate

if TYPE_CHECKING:
    from refdraft.service.client import Client
    from refdraft.service.pipeline import Pipeline

_INDEX = "python"
_PASSAGE_TOKENS = 192  # short passages, which a small target quotes better
_TITLE_WIDTH = 40

# Each with what to retrieve for it. Worded for the default target, which is small and quotes not every time.
_QUESTIONS = (
    (
        "What does the manual say about the with statement? Quote it.",
        Retrieval(index=_INDEX, query="the with statement", top_k=1),
    ),
    (
        "When is the else clause of a try statement executed? Quote the sentence that says so.",
        Retrieval(index=_INDEX, top_k=2),
    ),
    (
        "Write out the passage about generator functions in full, without changes.",
        Retrieval(index=_INDEX, query="return in generator functions", top_k=1),
    ),
    (
        "Copy the sentences of the passages that answer this question: What happens when a yield expression is "
        "evaluated?",
        Retrieval(index=_INDEX, top_k=1),
    ),
)
_DRAFTS = (
    "The function return a list of all the name that was found in the file, and it raise an error if the file do "
    "not exist.",
    "He go to school every days and he like it very much. Yesterday he have forgot his book at home, so the teacher "
    "was angry with him.",
)
_CORRECT = "Correct all grammatical errors in this text. Write only the corrected text.\n\n{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Something to ask, and how it is announced."""

    title: str
    request: GenerateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One task's answers, plain and drafted; seconds are those of the whole call."""

    task: Task
    plain: Completion
    drafted: Completion
    plain_s: float
    drafted_s: float

    @property
    def identical(self) -> bool:
        """Whether drafting changed nothing but the time."""
        return _output(self.plain) == _output(self.drafted)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the `demo` command."""
    parser = commands.add_parser(
        "demo",
        help="see it work on Python's own manual",
        description="Index Python's own manual, serve a model, ask and correct; each answer plain and drafted in turn.",
    )
    add_model_options(parser, "threads")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="of each answer; default: %(default)s")
    parser.add_argument("--no-color", action="store_true", help="do not colour copied spans")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer all tasks, plain and drafted, and print."""
    tasks = make_tasks(args.max_tokens)
    for task in tasks:
        validate(task.request, Limits())  # at once, not after the model is loaded
    colour = not args.no_color and wants_colour(sys.stdout)
    with TemporaryDirectory(prefix="refdraft-demo-") as folder, _client(args, Path(folder)) as client:
        client.generate(replace(tasks[0].request, sampling=Sampling(max_tokens=1)))  # a first call is always slow
        pairs = []
        for number, task in enumerate(tasks, start=1):
            print(f"\n[{number}/{len(tasks)}] {task.title}", flush=True)
            pairs.append(compare(client, task, drafted_first=number % 2 == 0))
            print(describe(pairs[-1], colour=colour), flush=True)
    return conclude(pairs)


def conclude(pairs: Sequence[Pair]) -> int:
    """Print the summary; the exit code is 1 where drafting changed an answer."""
    print(f"\n{summary(pairs)}")
    different = [pair.task.title for pair in pairs if not pair.identical]
    if different:
        print(f"refdraft: DRAFTING CHANGED THE OUTPUT, please report it: {'; '.join(different)}", file=sys.stderr)
    return 1 if different else 0


def make_tasks(max_tokens: int) -> list[Task]:
    """Questions that the manual answers, then sentences to correct; the last question is sampled."""
    greedy = Sampling(max_tokens=max_tokens)
    tasks = [
        Task(title=question, request=GenerateRequest(prompt=question, retrieval=retrieval, sampling=greedy))
        for question, retrieval in _QUESTIONS
    ]
    sampled = Sampling(max_tokens=max_tokens, temperature=0.7, top_p=0.9, seed=7)
    last = tasks[-1]
    tasks[-1] = Task(
        title=f"{last.title} (sampled: temperature {sampled.temperature}, seed {sampled.seed})",
        request=replace(last.request, sampling=sampled),
    )
    return tasks + [
        Task(
            title=f"Correct: {draft}",
            request=GenerateRequest(
                prompt=_CORRECT.format(draft), references=[Reference(id="original", text=draft)], sampling=greedy
            ),
        )
        for draft in _DRAFTS
    ]


def compare(client: "Client", task: Task, *, drafted_first: bool) -> Pair:
    """Answer a task plainly and with drafts. Vary which goes first: the second may find things warm."""
    requests = {
        "drafted": task.request,
        "plain": replace(task.request, drafting=Drafting(enabled=False)),
    }
    answers, seconds = {}, {}
    for name in sorted(requests, reverse=not drafted_first):
        start = time.perf_counter()
        answers[name] = client.generate(requests[name])
        seconds[name] = time.perf_counter() - start
    return Pair(
        task=task,
        plain=answers["plain"],
        drafted=answers["drafted"],
        plain_s=seconds["plain"],
        drafted_s=seconds["drafted"],
    )


def describe(pair: Pair, *, colour: bool) -> str:
    """An answer, its figures, and what was copied from where."""
    answer = pair.drafted
    painter = Painter()
    painted = painter.paint(Delta(text=answer.text, token_ids=(), attributions=answer.attributions))
    lines = [painted if colour else paint(answer.text, (), {})]
    lines.append(
        f"  {answer.drafting.tokens_per_step:.2f} tokens per step, plain {pair.plain_s:.2f} s, "
        f"drafted {pair.drafted_s:.2f} s, ratio {pair.plain_s / pair.drafted_s:.2f}, "
        f"identical: {'yes' if pair.identical else 'NO'}"
    )
    copies = [f"{span.document_id} {span.document_start}-{span.document_end}" for span in answer.attributions]
    lines.append(f"  copied (document, characters): {', '.join(copies) or 'nothing'}")
    if colour and answer.attributions:
        lines.append(f"  {painter.legend()}")
    return "\n".join(lines)


def summary(pairs: Sequence[Pair]) -> str:
    """A table of all pairs, with totals."""
    columns = f"{'tokens':>7}{'steps':>7}{'tokens/step':>13}{'plain s':>9}{'drafted s':>11}{'ratio':>7}  identical"
    rows = [_row(pair.task.title, [pair]) for pair in pairs]
    return "\n".join([f"{'task':<{_TITLE_WIDTH}}{columns}", *rows, _row("all", pairs)])


def _row(title: str, pairs: Sequence[Pair]) -> str:
    name = title if len(title) <= _TITLE_WIDTH else f"{title[: _TITLE_WIDTH - 3]}..."
    answers = [pair.drafted for pair in pairs]
    tokens, steps = sum(len(answer.token_ids) for answer in answers), sum(answer.drafting.steps for answer in answers)
    # The first token of an answer comes with its prefill, and takes no step.
    per_step = (tokens - len(answers)) / max(steps, 1)
    plain_s, drafted_s = sum(pair.plain_s for pair in pairs), sum(pair.drafted_s for pair in pairs)
    same = "yes" if all(pair.identical for pair in pairs) else "NO"
    return (
        f"{name:<{_TITLE_WIDTH}}{tokens:>7}{steps:>7}{per_step:>13.2f}{plain_s:>9.2f}{drafted_s:>11.2f}"
        f"{plain_s / drafted_s:>7.2f}  {same}"
    )


def _output(completion: Completion) -> tuple[object, ...]:
    return completion.token_ids, completion.text, completion.finish_reason


@contextmanager
def _client(args: argparse.Namespace, folder: Path) -> Iterator["Client"]:
    """A client of a new server, whose index and target are made ready first."""
    from refdraft.service.client import Client
    from refdraft.service.default_model import default_model_directory
    from refdraft.service.pipeline import Pipeline

    model = args.model or default_model_directory()
    index = _build_index(model, folder)
    print(f"loading {Path(model).name}", flush=True)
    config = replace(pipeline_config(args), slots=1)
    with Pipeline.load(model, indexes={_INDEX: index}, config=config) as pipeline, _serving(pipeline) as address:
        print(f"serving on {address}; from here on everything is asked over gRPC", flush=True)
        with Client(address) as client:
            yield client


def _build_index(model: str | Path, folder: Path) -> Path:
    """Index the topics that `help()` knows, by words and by vectors."""
    from pydoc_data.topics import topics

    from transformers import AutoTokenizer

    from refdraft.index_builder.build import BuildOptions, build_index
    from refdraft.index_builder.chunking import ChunkOptions
    from refdraft.retriever.tokenizer import Tokenizer

    source, index = folder / "topics.jsonl", folder / "index"
    rows = (json.dumps({"id": name, "title": name, "text": text}) for name, text in topics.items())
    source.write_text("\n".join(rows), encoding="utf-8")
    start = time.perf_counter()
    tokenizer = Tokenizer(AutoTokenizer.from_pretrained(model, trust_remote_code=False).backend_tokenizer)
    options = BuildOptions(chunks=ChunkOptions(passage_tokens=_PASSAGE_TOKENS), progress=sys.stderr.isatty())
    manifest = build_index([source], index, tokenizer, options, report=print)
    print(
        f"indexed Python's manual (pydoc_data.topics): {manifest.documents} documents, {manifest.passages} passages, "
        f"{time.perf_counter() - start:.1f} s",
        flush=True,
    )
    return index


@contextmanager
def _serving(pipeline: "Pipeline") -> Iterator[str]:
    """The address of a server on a thread of its own."""
    from refdraft.service.server import Server

    server = Server(pipeline, port=0)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="refdraft-demo-server", daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(server.start(), loop).result()
        asyncio.run_coroutine_threadsafe(server.stop(drain_s=1), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
