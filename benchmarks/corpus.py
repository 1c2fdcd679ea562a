"""Drafting for answers whose passages were not sent: from a large index that holds them, in three ways.

An index of the passages of LLMA, MTRAG, XQuAD and Spec-Bench's RAG among other text of this machine is built; then
recorded answers of LLMA and MTRAG are replayed with the question and the index alone:

    once    the passages that retrieval finds for the question
    again   those that it finds for what was written lately, every few tokens
    corpus  what the corpus as a source finds by itself (`drafting.corpus` of a request)

each alone and together, between `nothing` (prompt and output alone) and `given` (the passages that the answer was
written from). The drafter learns as it does in a server. Its prior was fitted on the first halves of the traces, so
figures are of the second halves.

    .venv/bin/python benchmarks/corpus.py build    # the index, under build/corpus/ (minutes)
    .venv/bin/python benchmarks/corpus.py search   # retrieval for all traces (minutes)
    .venv/bin/python benchmarks/corpus.py replay   # the figures, to benchmarks/results/corpus.json

Each goes on where it was stopped; remove build/corpus/ to begin anew.
"""

import argparse
import json
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median, quantiles
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np
from corpora.searches import Searched, search
from corpora.texts import data_rows, machine_rows, read_lines, whole_lines, write_rows
from numpy.typing import NDArray

from refdraft.decoder.corpus import Corpus
from refdraft.decoder.drafter import Drafter
from refdraft.decoder.odds import SurvivalOdds
from refdraft.decoder.replay import ReplayResult, Trace, replay
from refdraft.index_builder.build import BuildOptions, build_index
from refdraft.index_builder.suffixes import write_suffixes
from refdraft.retriever.index import Index
from refdraft.retriever.manifest import SUFFIXES_FILE, TOKENS_FILE
from refdraft.retriever.passages import PassageStore
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.default_model import default_model_directory
from refdraft.service.variants import token_classes

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "corpus"
TRACES = ("rag_llma", "rag_mtrag")
CHARACTERS = 18_000_000  # of each kind of this machine's text
FEWEST = 100_000  # passages that are none of the data sets'
BUDGET = 16  # draft nodes a step
LOOKUPS = 10_000

SETTINGS = (
    ("nothing",),
    ("given",),
    ("once",),
    ("again",),
    ("corpus",),
    ("once", "again"),
    ("once", "corpus"),
    ("again", "corpus"),
    ("once", "again", "corpus"),
    ("given", "corpus"),
)


def build(data: Path, tokenizer: Tokenizer) -> None:
    """Gather the texts and index them."""
    PLACE.mkdir(parents=True, exist_ok=True)
    out, source = PLACE / "index", PLACE / "passages.jsonl"
    if (PLACE / "build.json").is_file():
        return
    write_rows((row for rows in (data_rows(data), machine_rows(CHARACTERS)) for row in rows), source)
    start, cpu_start = perf_counter(), process_time()
    manifest = build_index(
        [source], out, tokenizer, BuildOptions(force=True, progress=sys.stderr.isatty()), report=print
    )
    seconds, cpu_seconds = perf_counter() - start, process_time() - cpu_start
    with Index.open(out) as index:
        foreign = sum(passage.document_id.startswith("/") for passage in index.passages)
        record = _measure_suffixes(index.passages)
    if foreign < FEWEST:
        raise SystemExit(f"this machine's text makes {foreign} passages only: raise CHARACTERS")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    millions = manifest.tokens / 1e6
    record |= {
        "passages": manifest.passages,
        "passages_of_the_machine": foreign,
        "tokens": manifest.tokens,
        "build_seconds_per_million_tokens": round(seconds / millions, 2),
        "build_cpu_seconds_per_million_tokens": round(cpu_seconds / millions, 2),
        "index_bytes_per_token": round(size / manifest.tokens, 2),
        "suffixes_bytes_per_token": round((out / SUFFIXES_FILE).stat().st_size / manifest.tokens, 2),
    }
    _write(PLACE / "build.json", record)


def _measure_suffixes(passages: PassageStore) -> dict[str, float]:
    tokens, starts = passages.tokens, passages.starts
    with tempfile.TemporaryDirectory() as folder:
        tracemalloc.start()
        start = perf_counter()
        write_suffixes(tokens, starts, Path(folder) / SUFFIXES_FILE, lambda _: None)
        seconds = perf_counter() - start
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return {
        "suffixes_seconds_per_million_tokens": round(1e6 * seconds / len(tokens), 2),
        "suffixes_peak_megabytes": round(peak / 1e6, 1),
    }


def search_all(data: Path, tokenizer: Tokenizer) -> None:
    """Retrieve for every trace, a line each."""
    with Index.open(PLACE / "index") as index:
        for name in TRACES:
            path = PLACE / f"{name}.jsonl"
            done = len(whole_lines(path))
            with path.open("a", encoding="utf-8") as stream:
                for record in search(data / "traces" / f"{name}.jsonl", done, index, tokenizer):
                    stream.write(json.dumps(record) + "\n")
                    stream.flush()


class IndexDrafting:
    """The drafter on one trace, fed from an index.

    Args:
        trace: what to replay.
        setting: what it is fed by.
        passages: of the index.
        corpus: the same as one text.
        classes: int32 [vocabulary], as for `Drafter`.
        odds: shared by the traces of a run.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        setting: Sequence[str],
        passages: PassageStore,
        corpus: Corpus,
        classes: NDArray[np.int32],
        odds: SurvivalOdds,
    ) -> None:
        assert isinstance(trace, Searched)
        once = trace.once if "once" in setting else []
        self._passages, self._known = passages, set(once)
        self._output, self._later = trace.output, dict(trace.again) if "again" in setting else {}
        self._drafter = Drafter(
            trace.prompt,
            {"references": trace.references if "given" in setting else [passages.token_ids(n).tolist() for n in once]},
            output_room=len(trace.output) + 1,
            classes=classes,
            odds=odds,
            corpus=corpus if "corpus" in setting else None,
        )
        self._drafter.observe(trace.output[:1])

    def step(self, position: int) -> tuple[int, int]:
        """See `refdraft.decoder.replay.Method`."""
        draft, node, held = self._drafter.propose(BUDGET), -1, 0
        while position + held < len(self._output):
            child = draft.child(node, self._output[position + held])
            if child is None:
                break
            node, held = child, held + 1
        self._drafter.observe(self._output[position : position + held + 1])
        for due in [due for due in self._later if due <= position]:  # found while this step's pass ran
            self._add(self._later.pop(due))
        return len(draft), held

    def _add(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number not in self._known:
                self._known.add(number)
                self._drafter.add_document("references", self._passages.token_ids(number), number)


def replay_all(tokenizer: Tokenizer, out: Path) -> None:
    """Replay every setting that was not, and write the figures."""
    with Index.open(PLACE / "index") as index:
        store = index.passages.token_store
        corpus = Corpus(store.tokens, store.suffixes, store.starts)
        traces = {name: [Searched.of(row) for row in read_lines(PLACE / f"{name}.jsonl")] for name in TRACES}
        report = json.loads((PLACE / "build.json").read_text())
        report |= _measure_lookups(corpus, [trace for name in TRACES for trace in traces[name]], report["tokens"])
        feed = partial(IndexDrafting, passages=index.passages, corpus=corpus, classes=token_classes(tokenizer))
        report["data"] = [_replay_file(name, traces[name], feed) for name in TRACES]
    _write(out, report)
    print("\n\n".join(map(_table, report["data"])))


def _replay_file(name: str, traces: list[Searched], feed: Callable[..., IndexDrafting]) -> dict[str, Any]:
    half = traces[(len(traces) + 1) // 2 :]
    records = PLACE / f"{name}_replays.jsonl"
    runs = {run["setting"]: run for run in whole_lines(records)}
    for setting in SETTINGS:
        title = " + ".join(setting)
        if title not in runs:
            runs[title] = _figures(title, _totals(half, partial(feed, setting=setting, odds=SurvivalOdds())))
            with records.open("a") as stream:
                stream.write(json.dumps(runs[title]) + "\n")
    given = runs["given"]["tokens_per_step"]
    for run in runs.values():
        run["share_of_given"] = round(run["tokens_per_step"] / given, 3)
    milliseconds = [each for trace in half for each in trace.milliseconds]
    searches = {
        "search_ms_median": round(median(milliseconds), 1),
        "search_ms_p95": round(quantiles(milliseconds, n=20)[-1], 1),
    }
    return {"file": name, "traces": len(half), **searches, "runs": list(runs.values())}


def _totals(traces: Sequence[Trace], method: Callable[[Trace], IndexDrafting]) -> ReplayResult:
    totals = ReplayResult()
    for after_a_trace in replay(traces, method):
        totals = after_a_trace
    return totals


def _figures(setting: str, result: ReplayResult) -> dict[str, Any]:
    return {
        "setting": setting,
        "tokens_per_step": round(result.tokens_per_step, 3),
        "acceptance": round(result.acceptance, 3),
        "step_ms_mean": round(1e3 * fmean(result.seconds), 3),
        "step_ms_median": round(1e3 * median(result.seconds), 3),
        "step_ms_p95": round(1e3 * quantiles(result.seconds, n=20)[-1], 3),
    }


def _measure_lookups(corpus: Corpus, traces: list[Searched], tokens: int) -> dict[str, float]:
    """Time lookups of contexts that occur, and see what they keep in memory."""
    rng = np.random.default_rng(0)
    contexts = []
    for number in rng.integers(len(traces), size=LOOKUPS):
        output = traces[number].output
        contexts.append(np.array(output[: rng.integers(1, len(output))], np.int32))
    corpus.find(contexts[0], 16)
    private, seconds = _private_bytes(), []
    for context in contexts:
        start = thread_time()
        corpus.find(context, 16)
        seconds.append(thread_time() - start)
    return {
        "lookup_us_median": round(1e6 * median(seconds), 1),
        "lookup_us_p95": round(1e6 * quantiles(seconds, n=20)[-1], 1),
        "private_megabytes_per_million_tokens": round((_private_bytes() - private) / tokens, 3),
        "mapped_megabytes_per_million_tokens": round(_mapped_bytes((TOKENS_FILE, SUFFIXES_FILE)) / tokens, 3),
    }


def _private_bytes() -> int:
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def _mapped_bytes(names: Iterable[str]) -> int:
    """Pages of the named files that this process has touched; the kernel may drop them at any time."""
    total, counting = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            counting = line.endswith(tuple(f"/{name}" for name in names))
        elif counting and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


def _write(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _table(data: dict[str, Any]) -> str:
    head = f"{data['file']}: {data['traces']} traces\n{'':28}tokens/step  of given  ms/step   p95"
    rows = (
        f"{run['setting']:28}{run['tokens_per_step']:11.2f}{run['share_of_given']:10.1%}"
        f"{run['step_ms_mean']:9.3f}{run['step_ms_p95']:7.3f}"
        for run in data["runs"]
    )
    return "\n".join((head, *rows))


def main() -> int:
    """Run one part; 1 where the one before it is lacking."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("build", "search", "replay"))
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "corpus.json")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.load(default_model_directory())
    if arguments.part == "build":
        build(arguments.data, tokenizer)
    elif arguments.part == "search":
        search_all(arguments.data, tokenizer)
    else:
        replay_all(tokenizer, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
