"""Record the default model's plain answers with the runners-up of every token, to fit and to replay drafting on.

Prompts: Spec-Bench's, `--each` of each category in its order, through the chat template, greedy, float32.

    .venv/bin/python benchmarks/record_answers.py [--each 20] [--out build/answers.jsonl]

Each line holds one answer: prompt ids, output ids, and for each output token the likeliest 8 as (id, logit below the
highest). A run that was stopped goes on behind the last whole line.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoTokenizer

from refdraft.decoder.engine import Engine, EngineConfig
from refdraft.decoder.request import Commit, DecodeRequest
from refdraft.decoder.target import Target
from refdraft.service.default_model import default_model_directory

ROOT = Path(__file__).resolve().parent.parent
NEW_TOKENS = 96
RUNNERS = 8
CONTEXT = 2048


def read_questions(path: Path, each: int) -> Iterator[dict[str, Any]]:
    """Yield the first `each` questions of each category."""
    seen: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n"):
        question = json.loads(line)
        seen[question["category"]] += 1
        if seen[question["category"]] <= each:
            yield question


def answer(engine: Engine, prompt: list[int], eos_ids: frozenset[int]) -> dict[str, Any]:
    """Decode one prompt plainly."""
    commits: list[Commit] = []

    def listen(commit: Commit | Exception) -> None:
        if isinstance(commit, Exception):
            raise commit
        commits.append(commit)

    request = DecodeRequest(prompt, NEW_TOKENS, eos_ids=eos_ids, top_logprobs=RUNNERS, max_draft_tokens=0)
    engine.submit(engine.prepare(request, None, listen))
    while engine.busy:
        engine.step()
    logprobs = [logprob for commit in commits for logprob in commit.logprobs]
    runners = [[(token, round(logprob.top[0][1] - value, 2)) for token, value in logprob.top] for logprob in logprobs]
    return {"output": [logprob.token for logprob in logprobs], "runners": runners}


def main() -> None:
    """Record what is missing."""
    parser = argparse.ArgumentParser(description="Record the default model's plain answers with runners-up.")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data" / "spec_bench" / "question.jsonl")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "answers.jsonl")
    parser.add_argument("--each", type=int, default=20, help="prompts of each category (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    text = arguments.out.read_text(encoding="utf-8") if arguments.out.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    arguments.out.write_text(whole, encoding="utf-8")
    done = {json.loads(line)["id"] for line in whole.split("\n") if line}
    directory = default_model_directory()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    config = EngineConfig()
    target = Target.load(directory, slots=1, context_limit=CONTEXT, max_width=config.widest_pass)
    engine = Engine(target, config)
    with arguments.out.open("a", encoding="utf-8") as file:
        for question in tqdm(list(read_questions(arguments.data, arguments.each))):
            chat = [{"role": "user", "content": question["turns"][0]}]
            rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            prompt = tokenizer.encode(rendered, add_special_tokens=False)
            if question["question_id"] in done or len(prompt) > CONTEXT - NEW_TOKENS:
                continue
            row = {"id": question["question_id"], "category": question["category"], "prompt": prompt}
            file.write(json.dumps(row | answer(engine, prompt, target.eos_ids)) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
