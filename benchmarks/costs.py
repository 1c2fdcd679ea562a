"""What a pass, drafting at a step, and building an index cost, on text that every Python brings along.

    .venv/bin/python benchmarks/costs.py

Passes: the default model on one thread, by rows, columns and tokens in the cache; beside the best time of each shape
what the engine expects of it after the few passes that it times at its start.

Drafting: references of 1k, 8k, 64k and 512k tokens (the standard library's source); the output is a stretch of
the same source with every 20th token changed, so that matches are found, lost and found again. Times are CPU time
of one thread: building once a request, then proposing and observing at every step.

Index: the same source, one document a module, with and without vectors; wall clock, since parts of it use threads.
"""

import argparse
import json
import statistics
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from refdraft.decoder.cost import measure_passes, time_pass
from refdraft.decoder.draft import Draft
from refdraft.decoder.drafter import Drafter
from refdraft.decoder.odds import SurvivalOdds
from refdraft.decoder.target import Target
from refdraft.decoder.verify import verify
from refdraft.index_builder.build import BuildOptions, build_index
from refdraft.retriever.tokenizer import Tokenizer
from refdraft.service.default_model import default_model_directory

ROOT = Path(__file__).resolve().parent.parent
REFERENCE_TOKENS = (1_000, 8_000, 64_000, 512_000)
OUTPUT_TOKENS = 2_000
EDIT_EVERY = 20
DRAFT_TOKENS = 16
WIDEST = 65
PASSES = (  # rows, tokens in the cache, columns
    (1, 64, (1, 2, 3, 4, 6, 8, 12, 16, 32, 65)),
    (1, 1024, (1, 2, 3, 4, 8, 16, 65)),
    (4, 256, (1, 2, 3, 4, 8, 16)),
    (4, 1024, (1, 2, 3, 4, 8, 16)),
    (16, 256, (1, 2, 4)),
)
ROUNDS = 3


def read_modules() -> Iterator[tuple[str, str]]:
    """Yield (name, source) of the standard library's modules, in order."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        if "site-packages" not in path.parts and "test" not in path.parts:
            yield str(path.relative_to(root)), path.read_text(encoding="utf-8", errors="replace")


def compare_passes(dtype: str) -> dict[str, Any]:
    """Time passes of many shapes, and set beside them what the engine expects."""
    torch.set_num_threads(1)
    target = Target.load(default_model_directory(), slots=16, context_limit=2048, max_width=WIDEST, dtype=dtype)
    start = time.perf_counter()
    cost = measure_passes(target, WIDEST)
    calibration_s = round(time.perf_counter() - start, 2)
    table = []
    for rows, length, columns in PASSES:
        widths = np.array(columns)
        rounds = [[time_pass(target, rows, width, length) for width in columns] for _ in range(ROUNDS)]
        table.append(
            {
                "rows": rows,
                "cached_tokens": length,
                "columns": columns,
                "ms": (np.min(rounds, axis=0) * 1e3).round(1).tolist(),
                "expected_ms": (cost(rows, widths, length + widths) * 1e3).round(1).tolist(),
            }
        )
    return {"calibration_s": calibration_s, "passes": table}


def measure_drafting(ids: list[int], size: int) -> dict[str, float]:
    """Build a drafter over `size` tokens of references and follow an output with it."""
    references = ids[:size]
    output = [token if i % EDIT_EVERY else 1 for i, token in enumerate((references * 3)[-OUTPUT_TOKENS:], start=1)]
    classes = np.arange(1, max(ids) + 2, dtype=np.int32)
    start = time.process_time()
    drafter = Drafter([], {"references": [references]}, output_room=OUTPUT_TOKENS, classes=classes, odds=SurvivalOdds())
    build = time.process_time() - start
    steps: list[float] = []
    position = 0
    while position < len(output):
        start = time.process_time()
        draft = drafter.propose(DRAFT_TOKENS)
        steps.append(time.process_time() - start)
        end = position + count_committed(draft, output[position:])
        start = time.process_time()
        drafter.observe(output[position:end])
        steps[-1] += time.process_time() - start
        position = end
    return {
        "reference_tokens": size,
        "build_ms": round(build * 1e3, 2),
        "step_us_median": round(statistics.median(steps) * 1e6, 1),
        "step_us_p95": round(statistics.quantiles(steps, n=20)[-1] * 1e6, 1),
    }


def count_committed(draft: Draft, output: list[int]) -> int:
    """Tokens of the output that a step with this draft commits."""
    truth = iter([*output, -1])
    return min(len(output), sum(1 for _ in verify(draft, lambda row: next(truth))))


def measure_index(modules: list[tuple[str, str]], tokenizer: Tokenizer, *, dense: bool) -> dict[str, Any]:
    """Build an index of all modules in a temporary folder."""
    with TemporaryDirectory() as folder:
        source, out = Path(folder) / "modules.jsonl", Path(folder) / "index"
        rows = (json.dumps({"id": name, "text": text}) for name, text in modules if text.strip())
        source.write_text("\n".join(rows), encoding="utf-8")
        start = time.perf_counter()
        manifest = build_index([source], out, tokenizer, BuildOptions(dense=dense, progress=False), report=print)
        seconds = time.perf_counter() - start
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    millions = manifest.tokens / 1e6
    return {
        "vectors": dense,
        "passages": manifest.passages,
        "tokens": manifest.tokens,
        "seconds": round(seconds, 1),
        "seconds_per_million_tokens": round(seconds / millions, 2),
        "megabytes_per_million_tokens": round(size / 1e6 / millions, 2),
    }


def main() -> None:
    """Measure, write the JSON and print it."""
    parser = argparse.ArgumentParser(description="Cost of drafting a step and of building an index.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "costs.json")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.load(default_model_directory())
    modules = list(read_modules())
    ids: list[int] = []
    for _, text in modules:
        if len(ids) < max(REFERENCE_TOKENS):
            ids += tokenizer.encode(text).tolist()
    measure_drafting(ids, 100)  # compiles what is compiled at first use
    report = {
        **{dtype: compare_passes(dtype) for dtype in ("float32", "bfloat16")},
        "drafting": [measure_drafting(ids, size) for size in REFERENCE_TOKENS],
        "index": [measure_index(modules, tokenizer, dense=dense) for dense in (False, True)],
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
