"""Real decoding with the default model: refdraft, plain and drafted, beside transformers' own generate.

Prompts: the first 40 RAG and the first 40 summarisation prompts of Spec-Bench, and the first 50 JFLEG groups of
four sentences, through the target's chat template. Each prompt runs by every method in one process, 64 new
tokens, float32, batch 1; the methods' order rotates from prompt to prompt.

    .venv/bin/python benchmarks/real_decoding.py [--threads 1] [--limit N]

Every finished prompt is one line in the records file; a run that was stopped goes on behind the last. `seconds`
is the whole call, `prefill_seconds` the part of it until the first token is there; `steps` are the forward
passes after that. Tokens per step leave the first token out; prompt lookup may commit more than that one in its
first pass, which therefore counts in its favour.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.request import Commit, DecodeRequest
from refdraft.decoder.sampling import SamplingOptions
from refdraft.decoder.target import Target
from refdraft.service.default_model import default_model_directory

ROOT = Path(__file__).resolve().parent.parent
NEW_TOKENS = 64
PROMPTS = {"rag": 40, "summarization": 40, "jfleg": 50}

# (baseline, method): seconds of the first over seconds of the second, and whether their ids are equal.
PAIRS = (
    ("transformers", "prompt_lookup"),
    ("transformers", "plain"),
    ("transformers", "drafted"),
    ("prompt_lookup", "drafted"),
    ("plain", "drafted"),
    ("sampled_plain", "sampled_drafted"),
)

Record = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """A user turn: an instruction and the text it is about, which is cut at its start where it is too long."""

    id: str
    set: str
    instruction: str
    text: str


@dataclass(frozen=True)
class Run:
    """What one method made of one prompt."""

    ids: list[int]
    seconds: float
    prefill_seconds: float
    steps: int


Method = Callable[[list[int], int], Run]  # (prompt ids, seed)


def read_prompts(data: Path, limit: int | None) -> Iterator[Prompt]:
    """Yield the fixed choice of prompts, at most `limit` of each set."""
    for name, count in PROMPTS.items():
        yield from islice(_read_set(data, name), count if limit is None else min(count, limit))


def _read_set(data: Path, name: str) -> Iterator[Prompt]:
    path = data / ("traces/grammar_jfleg.jsonl" if name == "jfleg" else "spec_bench/question.jsonl")
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if name == "jfleg":
            instruction, _, text = row["prompt"].partition("\n")
            yield Prompt(row["id"], name, instruction + "\n", text.strip())
        elif row["category"] == name:
            prefix = "Summarize: " if name == "summarization" else ""
            yield Prompt(str(row["question_id"]), name, prefix, row["turns"][0].removeprefix(prefix))


def encode(tokenizer: Any, prompt: Prompt, most: int) -> tuple[list[int], bool]:
    """Return the templated prompt's ids, `most` at most, and whether its text had to be cut."""
    text_ids: list[int] = tokenizer.encode(prompt.text, add_special_tokens=False)
    text, cut = prompt.text, False
    while True:
        chat = [{"role": "user", "content": prompt.instruction + text}]
        rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids: list[int] = tokenizer.encode(rendered, add_special_tokens=False)
        if len(ids) <= most:
            return ids, cut
        text_ids, cut = text_ids[len(ids) - most :], True
        text = tokenizer.decode(text_ids)


def transformers_decode(model: Any, prompt: list[int], **options: Any) -> Run:
    """Run transformers' greedy generate and count its forward passes."""
    passes: list[float] = []
    hook = model.register_forward_hook(lambda *_: passes.append(time.perf_counter()))
    inputs = torch.tensor([prompt])
    start = time.perf_counter()
    output = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=NEW_TOKENS, do_sample=False, **options
    )
    seconds = time.perf_counter() - start
    hook.remove()
    return Run(output[0, len(prompt) :].tolist(), seconds, passes[0] - start, len(passes) - 1)


def refdraft_decode(
    engine: Engine, prompt: list[int], eos_ids: frozenset[int], *, draft: bool, sampling: SamplingOptions
) -> Run:
    """Run the engine on one request; spans come from the prompt and the output so far."""
    commits: list[tuple[float, Commit]] = []

    def listen(commit: Commit | Exception) -> None:
        if isinstance(commit, Exception):
            raise commit
        commits.append((time.perf_counter(), commit))

    request = DecodeRequest(prompt, NEW_TOKENS, sampling=sampling, eos_ids=eos_ids, max_draft_tokens=16 if draft else 0)
    start = time.perf_counter()
    engine.submit(engine.prepare(request, engine.build_drafter(request), listen))
    while engine.busy:
        engine.step()
    seconds = time.perf_counter() - start
    ids = [token for _, commit in commits for token in commit.tokens]
    return Run(ids, seconds, commits[0][0] - start, len(commits) - 1)


def build_methods(engine: Engine, model: Any) -> dict[str, Method]:
    """Return what is compared, by name."""
    eos = model.generation_config.eos_token_id
    eos_ids = frozenset(eos if isinstance(eos, list) else [eos])

    def sampled(seed: int) -> SamplingOptions:
        return SamplingOptions(temperature=0.7, top_p=0.9, seed=seed)

    def refdraft(draft: bool, sample: bool) -> Method:
        return lambda ids, seed: refdraft_decode(
            engine, ids, eos_ids, draft=draft, sampling=sampled(seed) if sample else SamplingOptions()
        )

    return {
        "transformers": lambda ids, _: transformers_decode(model, ids),
        "prompt_lookup": lambda ids, _: transformers_decode(model, ids, prompt_lookup_num_tokens=10),
        "plain": refdraft(draft=False, sample=False),
        "drafted": refdraft(draft=True, sample=False),
        "sampled_plain": refdraft(draft=False, sample=True),
        "sampled_drafted": refdraft(draft=True, sample=True),
    }


def read_records(path: Path) -> list[Record]:
    """Return the finished prompts, after removing a last line that a stopped run left half written."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def measure(prompts: Sequence[Prompt], path: Path, threads: int) -> None:
    """Append a record of every prompt that has none yet."""
    done = {record["id"] for record in read_records(path)}
    prompts = [prompt for prompt in prompts if prompt.id not in done]
    if not prompts:
        return
    directory = default_model_directory()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    config = EngineConfig(numerics="fast", max_draft_tokens=16)
    engine = Engine(Target.load(directory, slots=1, context_limit=None, max_width=config.widest_pass), config)
    engine.calibrate()
    methods = build_methods(engine, model)
    for method in methods.values():  # the first call of each pays for what later ones find ready
        method(tokenizer.encode("Once upon a time"), 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for number, prompt in enumerate(prompts, start=len(done)):
            ids, cut = encode(tokenizer, prompt, engine.target.context_limit - NEW_TOKENS)
            names = list(methods)
            turn = number % len(names)
            runs = {name: asdict(methods[name](ids, number)) for name in names[turn:] + names[:turn]}
            record = {"id": prompt.id, "set": prompt.set, "prompt_tokens": len(ids), "cut": cut, "threads": threads}
            file.write(json.dumps(record | {"runs": runs}) + "\n")
            file.flush()
            print(f"{number + 1}: {prompt.set} {prompt.id}, {len(ids)} prompt tokens", flush=True)


def compare(records: Sequence[Record], baseline: str, method: str) -> dict[str, Any]:
    """Compare two methods over `records`: ratios above 1 say that `method` is the faster."""
    pairs = [(record["runs"][baseline], record["runs"][method]) for record in records]

    def ratios(seconds: Callable[[Mapping[str, Any]], float]) -> dict[str, float]:
        timed = [(seconds(a), seconds(b)) for a, b in pairs if a["steps"] and b["steps"]]
        total = sum(a for a, _ in timed) / sum(b for _, b in timed)
        return {"median": round(statistics.median(a / b for a, b in timed), 3), "total": round(total, 3)}

    return {
        "identical": sum(a["ids"] == b["ids"] for a, b in pairs),
        "speed": ratios(lambda run: run["seconds"]),
        "speed_without_prefill": ratios(lambda run: run["seconds"] - run["prefill_seconds"]),
    }


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Return the figures of one set of prompts."""
    methods = {}
    for name in records[0]["runs"]:
        runs = [record["runs"][name] for record in records]
        tokens, steps = sum(len(run["ids"]) for run in runs), sum(run["steps"] for run in runs)
        methods[name] = {
            "tokens": tokens,
            "steps": steps,
            "tokens_per_step": round((tokens - len(runs)) / max(steps, 1), 3),
            "seconds": round(sum(run["seconds"] for run in runs), 2),
            "prefill_seconds": round(sum(run["prefill_seconds"] for run in runs), 2),
        }
    return {
        "prompts": len(records),
        "prompt_tokens": sum(record["prompt_tokens"] for record in records),
        "cut": sum(record["cut"] for record in records),
        "methods": methods,
        "pairs": {f"{method} / {baseline}": compare(records, baseline, method) for baseline, method in PAIRS},
    }


def print_table(name: str, figures: Mapping[str, Any]) -> None:
    """Print one set's figures for a reader."""
    print(f"\n{name}: {figures['prompts']} prompts, {figures['prompt_tokens']} tokens, {figures['cut']} cut")
    print(f"  {'method':<34} tokens/step   seconds   of it prefill")
    for method, row in figures["methods"].items():
        print(f"  {method:<34} {row['tokens_per_step']:11.2f} {row['seconds']:9.1f} {row['prefill_seconds']:15.1f}")
    print(f"  {'times as fast as':<34}   identical    median     total   without prefill: median, total")
    for pair, row in figures["pairs"].items():
        speed, decode = row["speed"], row["speed_without_prefill"]
        figure = f"{speed['median']:9.2f} {speed['total']:9.2f} {decode['median']:25.2f} {decode['total']:6.2f}"
        print(f"  {pair:<34} {row['identical']:7}/{figures['prompts']} {figure}")


def describe_machine(threads: Sequence[int]) -> dict[str, Any]:
    """Say what the figures were measured on."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.machine(),
        "cores": os.cpu_count(),
        "threads": list(threads),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": "float32",
        "new_tokens": NEW_TOKENS,
    }


def main() -> None:
    """Measure what is missing, then write and print the summary."""
    parser = argparse.ArgumentParser(description="Drafted and plain decoding beside transformers' generate.")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--records", type=Path, default=ROOT / "build" / "real_decoding.jsonl")
    parser.add_argument("--summary", type=Path, default=ROOT / "benchmarks" / "results" / "real_decoding.json")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="prompts of each set, for a trial")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        parser.error(f"no data at {arguments.data}: give its folder with --data")
    torch.set_num_threads(arguments.threads)
    measure(list(read_prompts(arguments.data, arguments.limit)), arguments.records, arguments.threads)
    records = read_records(arguments.records)
    sets = {name: [record for record in records if record["set"] == name] for name in PROMPTS}
    figures = {name: summarise(found) for name, found in (sets | {"all": records}).items() if found}
    machine = describe_machine(sorted({record["threads"] for record in records}))
    arguments.summary.parent.mkdir(parents=True, exist_ok=True)
    arguments.summary.write_text(json.dumps({"machine": machine, "sets": figures}, indent=1) + "\n", encoding="utf-8")
    for name, found in figures.items():
        print_table(name, found)


if __name__ == "__main__":
    main()
