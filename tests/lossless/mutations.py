"""Could the property test fail? Small faults are planted one at a time, and each must be caught.

    .venv/bin/python tests/lossless/mutations.py [--cases N] [WORD ...]

Every fault goes into a temporary copy of the source, never into the source itself. Prints what caught each of them,
or each whose name holds one of the words; exits with 1 if one survives.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
CASES = 600
_COPIED = ("src", "decoder", "index_builder", "retriever", "service", "tests")
_SEARCH = """
import logging, sys
from hypothesis import Phase
from tests.lossless.test_properties import search
logging.disable()
search(int(sys.argv[1]), "mutations", phases=[Phase.generate])
"""
_FOUND = "Reproduce it with"  # what `search` says of a case that fails, and nothing else does


@dataclass(frozen=True)
class Mutation:
    """A fault: `new` in place of `old`, which stands exactly once in `file`."""

    name: str
    file: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """Plant it under `root`.

        Raises:
            ValueError: the file has changed, so that the fault must be written anew.
        """
        path = root / self.file
        text = path.read_text()
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.file} holds the text to replace {found} times, not once")
        path.write_text(text.replace(self.old, self.new))


def _missed(name: str, undo: str) -> Mutation:
    """A fault that undoes a part of the sampler's step over accepted tokens: the part happens once a step."""
    advance = "                sampler.advance(token)\n"
    late = f"                if node is not None:\n                    {undo}\n"
    return Mutation(name, "decoder/engine.py", advance, advance + late)


def _ignored(name: str, condition: str) -> Mutation:
    """A fault that takes no notice of an end at an accepted token."""
    check = "                if ending := slot.finish_reason(token, self.target.context_limit):\n"
    late = f"                if ending and node is not None and {condition}:\n                    ending = None\n"
    asked = "                ending = slot.finish_reason(token, self.target.context_limit)\n"
    return Mutation(name, "decoder/engine.py", check, asked + late + "                if ending:\n")


MUTATIONS = (
    _missed("penalties count once a step", "sampler._processors._counts[token] -= 1"),
    _missed("the random numbers advance once a step", "sampler._position -= 1"),
    _missed("min_tokens counts steps", "sampler._processors._length -= 1"),
    _missed("bad words overlook accepted tokens", "sampler._processors._context[-1:] = []"),
    Mutation(
        "the constraint advances once a step",
        "decoder/engine.py",
        "                sampler.advance(token)\n",
        "                constraint = sampler._constraint\n"
        "                sampler._constraint = constraint if node is None else None\n"
        "                sampler.advance(token)\n"
        "                sampler._constraint = constraint\n",
    ),
    Mutation(
        "the bonus token is drawn without top_p",
        "decoder/engine.py",
        "            for token, node in verify(draft, lambda column: sampler.choose(logits[column])):\n",
        "            from dataclasses import replace\n"
        "            def choose(column):\n"
        "                options = sampler._options\n"
        "                if column and column == len(draft):\n"
        "                    sampler._options = replace(options, top_p=1.0)\n"
        "                token = sampler.choose(logits[column])\n"
        "                sampler._options = options\n"
        "                return token\n"
        "            for token, node in verify(draft, choose):\n",
    ),
    _ignored("EOS is checked at the end of a step", 'ending == "stop"'),
    _ignored("stop tokens are checked at the end of a step", 'ending == "stop_token"'),
    _ignored("the stop rule is heeded at the end of a step", 'ending == "stop_string"'),
    Mutation(
        "a stop rule's token is not committed",
        "decoder/engine.py",
        "        self._count(slot.statistics, draft, path)\n        if ending is None:\n",
        "        if ending == 'stop_string' and len(tokens) > 1:\n"
        "            del tokens[-1], path[len(tokens):], logprobs[len(tokens):]\n"
        "        self._count(slot.statistics, draft, path)\n        if ending is None:\n",
    ),
    Mutation(
        "rejected tokens count as cached",
        "decoder/engine.py",
        "            slot.cached += 1 + len(path)\n",
        "            slot.cached += 1 + (path[-1] + 1 if path else 0)\n",  # wrong for trees only
    ),
    Mutation(
        "log-probabilities come from the wrong row",
        "decoder/engine.py",
        "logits[path[-1] + 1 if path else 0]",
        "logits[len(path)]",  # wrong for trees only
    ),
    Mutation(
        "the prompt's logits come from the padding",
        "decoder/engine.py",
        "last_only=len(chunk) - 1)",
        "last_only=width - 1)",
    ),
    Mutation(
        "samples of one prompt share a sampler",
        "decoder/engine.py",
        "            sample.family = family\n",
        "            sample.family, sample.sampler = family, samples[0].sampler\n",
    ),
    Mutation(
        "a node's position is its column",
        "decoder/batch.py",
        "row.length + np.array(row.draft.depths(), np.int64)",
        "row.length + np.arange(1, size)",
    ),
    Mutation(
        "a sliding window counts cells",
        "decoder/batch.py",
        "self.positions[:, :, None] - self.cell_positions()[:, None] < window",
        "self.positions[:, :, None] - np.arange(self.mask.shape[2]) < window",  # wrong for trees only
    ),
    Mutation(
        "a node sees its siblings",
        "decoder/batch.py",
        "= row.draft.visibility()",
        "= np.tri(size, dtype=np.bool_)",
    ),
    Mutation(
        "a child may hang from any node",
        "decoder/draft.py",
        "if self.parents[candidate] == node and self.tokens[candidate] == token:",
        "if self.tokens[candidate] == token:",
    ),
    Mutation(
        "the accepted path is not gathered",
        "decoder/target.py",
        "        if list(path) == list(range(1, len(path) + 1)):\n",
        "        if True:\n",
    ),
    Mutation(
        "a fork copies one cell too few",
        "decoder/target.py",
        "tensor[:, goal_slot, :, :length] = tensor[:, source_slot, :, :length]",
        "tensor[:, goal_slot, :, : length - 1] = tensor[:, source_slot, :, : length - 1]",
    ),
    Mutation(
        "a drafted NaN reaches its neighbours",
        "decoder/target.py",
        "        finite = states.nan_to_num(0.0, 0.0, 0.0)\n",
        "        finite = states.clone()\n",
    ),
    Mutation(
        "top_k takes the highest ids among equals",
        "decoder/sampling.py",
        "np.flatnonzero(scores == threshold)[: k - len(above)]",
        "np.flatnonzero(scores == threshold)[len(above) - k :]",
    ),
    Mutation(
        "greedy takes the highest id among equals",
        "decoder/sampling.py",
        "    best = int(scores.argmax())\n",
        "    best = len(scores) - 1 - int(scores[::-1].argmax())\n",
    ),
    Mutation(
        "bad words do not reach into the prompt",
        "decoder/processors.py",
        "list(prompt) if options.bad_words else []",
        "[]",
    ),
)


def main() -> int:
    """Plant what was asked for, and tell what became of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="only faults whose name holds one of these words")
    parser.add_argument("--cases", type=int, default=CASES, metavar="N", help=f"cases to try each with ({CASES})")
    options = parser.parse_args()
    chosen = [m for m in MUTATIONS if not options.words or any(word in m.name for word in options.words)]
    survivors = 0
    with TemporaryDirectory() as directory:
        root = Path(directory)
        for name in _COPIED:
            shutil.copytree(ROOT / name, root / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        if caught := caught_by(root, options.cases):
            sys.exit(f"without any fault the test fails already: {caught}")
        for mutation in chosen:
            start = time.monotonic()
            original = (root / mutation.file).read_text()
            mutation.apply(root)
            caught = caught_by(root, options.cases)
            (root / mutation.file).write_text(original)
            survivors += caught is None
            print(f"{mutation.name:50} {time.monotonic() - start:4.0f} s  {caught or 'SURVIVED'}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} faults caught")
    return 1 if survivors else 0


def caught_by(root: Path, cases: int) -> str | None:
    """The check that a case failed, run on the source under `root`; None if all cases passed."""
    paths = os.pathsep.join([str(root / "src"), str(root)])
    run = subprocess.run(
        [sys.executable, "-c", _SEARCH, str(cases)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode == 0:
        return None
    if _FOUND not in run.stderr:
        sys.exit(f"the test could not run:\n{run.stderr}")
    lines = run.stderr.partition("Failing test case")[0].splitlines()
    asserts = [line.strip() for line in lines if line.startswith("    assert ")]
    return asserts[-1] if asserts else lines[-1]


if __name__ == "__main__":
    sys.exit(main())
