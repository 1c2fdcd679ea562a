"""What was measured, a line for each prompt, and the figures made of it."""

import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What a method made of a prompt.

    Attributes:
        ids: output tokens.
        seconds: wall clock of building the drafter and of decoding behind the first token.
        build_seconds: the first part of it.
        cpu_seconds: what `seconds` says, in CPU time of all threads: neighbours on the machine matter less to it.
        steps: decode passes.
        drafted, accepted: draft tokens.
    """

    ids: list[int]
    seconds: float
    build_seconds: float
    cpu_seconds: float
    steps: int
    drafted: int
    accepted: int


class Records:
    """The finished prompts of a measurement, in a file that a run which was stopped goes on with.

    Args:
        path: a file of JSON lines; a last line that is not whole is dropped.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        path.write_text(whole, encoding="utf-8")
        self._path = path
        self._records = {record["id"]: record for record in map(json.loads, whole.splitlines())}

    def has(self, id: str, methods: Iterable[str]) -> bool:
        """Whether a prompt was run by all of these methods together."""
        return id in self._records and self._records[id]["runs"].keys() >= set(methods)

    def add(self, record: Record) -> None:
        """Write a prompt's record, which takes the place of an earlier one."""
        self._records[record["id"]] = record
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def of(self, name: str) -> list[Record]:
        """The records of a set."""
        return [record for record in self._records.values() if record["set"] == name]


def make_record(
    id: str, name: str, prompt: Sequence[int], prefill_seconds: float, runs: Mapping[str, Run], *, cut: bool = False
) -> Record:
    """The record of a prompt of the set `name`."""
    return {
        "id": id,
        "set": name,
        "prompt_tokens": len(prompt),
        "cut": cut,
        "prefill_seconds": prefill_seconds,
        "runs": {method: asdict(run) for method, run in runs.items()},
    }


def summarise(records: Sequence[Record], pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The figures of a set: of each method, and of each (method, baseline) that were run together."""
    names = list(dict.fromkeys(name for record in records for name in record["runs"]))
    return {
        "prompts": len(records),
        "prompt_tokens": sum(record["prompt_tokens"] for record in records),
        "cut": sum(record["cut"] for record in records),
        "prefill_seconds": round(sum(record["prefill_seconds"] for record in records), 2),
        "methods": {name: _total([r["runs"][name] for r in records if name in r["runs"]]) for name in names},
        "pairs": {
            f"{method} / {baseline}": compare(records, method, baseline)
            for method, baseline in pairs
            if any(record["runs"].keys() >= {method, baseline} for record in records)
        },
    }


def compare(records: Iterable[Record], method: str, baseline: str) -> dict[str, Any]:
    """How many times the tokens a second of `baseline` a method decodes, and how many outputs are equal.

    Where outputs differ, as they may in bfloat16, so do their lengths: seconds alone would compare unlike things.
    """
    runs = [(r["runs"][method], r["runs"][baseline]) for r in records if r["runs"].keys() >= {method, baseline}]
    timed = [(a, b) for a, b in runs if a["steps"] and b["steps"]]
    return {
        "prompts": len(runs),
        "identical": sum(a["ids"] == b["ids"] for a, b in runs),
        "speed": _speed(timed, "seconds") if timed else None,
        "cpu_speed": _speed(timed, "cpu_seconds") if timed else None,
    }


def _speed(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], clock: str) -> dict[str, float]:
    speeds = [_rate([a], clock) / _rate([b], clock) for a, b in pairs]
    total = _rate([a for a, _ in pairs], clock) / _rate([b for _, b in pairs], clock)
    figures = {"median": statistics.median(speeds), "total": total, "worst": min(speeds)}
    return {name: round(figure, 3) for name, figure in figures.items()}


def _rate(runs: Sequence[Mapping[str, Any]], clock: str) -> float:
    """Tokens a second behind the first of each output."""
    return sum(len(run["ids"]) - 1 for run in runs) / float(sum(run[clock] for run in runs))


def write_summary(path: Path, dtype: str, sets: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the figures of all sets beside what they were made with, and print them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": _describe_machine(dtype), "sets": sets}, indent=1) + "\n", encoding="utf-8")
    for name, figures in sets.items():
        _print_figures(name, figures)


def _describe_machine(dtype: str) -> dict[str, Any]:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "command": shlex.join(["python", *sys.argv]),
        "cpu": names[0].partition(":")[2].strip() if names else platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": dtype,
    }


def _print_figures(name: str, figures: Mapping[str, Any]) -> None:
    print(f"\n{name}: {figures['prompts']} prompts, {figures['prompt_tokens']} tokens, {figures['cut']} cut")
    print(f"  {'':<34} tokens/step   drafted/step   accepted   seconds")
    for method, row in figures["methods"].items():
        steps = f"{row['tokens_per_step']:11.2f} {row['drafted_per_step']:14.2f} {row['acceptance']:10.2f}"
        print(f"  {method:<34} {steps} {row['seconds']:9.1f}")
    print(f"  {'times as fast as':<34}   identical    median   total   worst   CPU time: median   total   worst")
    for pair, row in figures["pairs"].items():
        if row["speed"]:
            wall, cpu = ("".join(f"{speed:8.2f}" for speed in row[key].values()) for key in ("speed", "cpu_speed"))
            print(f"  {pair:<34} {row['identical']:7}/{row['prompts']:<3} {wall}            {cpu}")


def _total(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums over a method's runs. The first token of each comes with the prefill and belongs to no step."""
    tokens, steps = sum(len(run["ids"]) for run in runs), sum(run["steps"] for run in runs)
    drafted, accepted = sum(run["drafted"] for run in runs), sum(run["accepted"] for run in runs)
    return {
        "prompts": len(runs),
        "tokens": tokens,
        "steps": steps,
        "tokens_per_step": round((tokens - len(runs)) / max(steps, 1), 3),
        "drafted_per_step": round(drafted / max(steps, 1), 3),
        "acceptance": round(accepted / max(drafted, 1), 3),
        "seconds": round(sum(run["seconds"] for run in runs), 2),
        "cpu_seconds": round(sum(run["cpu_seconds"] for run in runs), 2),
        "build_seconds": round(sum(run["build_seconds"] for run in runs), 3),
    }
