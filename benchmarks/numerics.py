"""What strict numerics costs: seconds of a plain step, strict over fast, by requests at once and strict width.

Plain decoding is the worst case: strict numerics pays for its whole shape, [slots, width] over every cell of the
cache, whatever is drafted in it. The default model, a prompt of 256 tokens, 2048 tokens of context a slot.

    .venv/bin/python benchmarks/numerics.py [--threads 1] [--dtypes float32 bfloat16]
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any, Literal

import torch

from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.request import DecodeRequest
from refdraft.decoder.target import Target
from refdraft.service.default_model import default_model_directory

ROOT = Path(__file__).resolve().parent.parent
PROMPT = [100 + n % 5000 for n in range(256)]
CONTEXT_LIMIT = 2048
SLOTS = (1, 4)
DRAFT_TOKENS = (3, 7, 15)  # of a strict pass, whose width is one more
ROUNDS = 3
STEPS = 4  # in each round


def ready(target: Target, numerics: Literal["strict", "fast"], draft_tokens: int, requests: int) -> Engine:
    """Return an engine whose requests have all been prefilled and decode plainly."""
    engine = Engine(target, EngineConfig(numerics=numerics, max_draft_tokens=draft_tokens, prefill_chunk=128))
    for _ in range(requests):
        request = DecodeRequest(PROMPT, CONTEXT_LIMIT, max_draft_tokens=0)
        engine.submit(engine.prepare(request, None, lambda _: None))
    for _ in range(requests * (1 + len(PROMPT) // 128)):
        engine.step()
    return engine


def seconds_per_step(engine: Engine) -> float:
    """Time some steps."""
    start = time.perf_counter()
    for _ in range(STEPS):
        engine.step()
    return (time.perf_counter() - start) / STEPS


def measure(dtype: str) -> list[dict[str, Any]]:
    """Time plain steps, fast and strict in turn."""
    rows = []
    for slots in SLOTS:
        width = max(*DRAFT_TOKENS, 127) + 1
        shape: dict[str, Any] = {"slots": slots, "context_limit": CONTEXT_LIMIT, "max_width": width, "dtype": dtype}
        targets = {name: Target.load(default_model_directory(), **shape) for name in ("fast", "strict")}
        fast = ready(targets["fast"], "fast", max(DRAFT_TOKENS), slots)
        for draft_tokens in DRAFT_TOKENS:
            strict = ready(targets["strict"], "strict", draft_tokens, slots)
            pairs = [(seconds_per_step(fast), seconds_per_step(strict)) for _ in range(ROUNDS)]
            rows.append(
                {
                    "dtype": dtype,
                    "requests": slots,
                    "strict_width": draft_tokens + 1,
                    "fast_ms": round(1e3 * statistics.median(a for a, _ in pairs), 1),
                    "strict_ms": round(1e3 * statistics.median(b for _, b in pairs), 1),
                    "strict_over_fast": round(statistics.median(b / a for a, b in pairs), 2),
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description="The cost of strict numerics over fast.")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"], help="(default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = [row for dtype in arguments.dtypes for row in measure(dtype)]
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    machine = {"cpu": cpu.partition(":")[2].strip(), "threads": arguments.threads, "torch": torch.__version__}
    path = ROOT / "benchmarks" / "results" / "numerics.json"
    path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
