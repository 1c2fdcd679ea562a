"""Retrieval quality: XQuAD's 1,190 English questions, each to its own paragraph among 240.

    python benchmarks/retrieval.py [--data ../shared/data/xquad/xquad.en.json] [--tokenizer DIR]

Prints recall@1/5/10 for each mode, with and without the articles' titles beside the paragraphs, and writes
benchmarks/results/retrieval.json. Nothing is fitted to these questions: BM25 has its usual k1 and b, fusion its
usual k, and the embedding model comes as it is. `relative_score` is not what `hybrid` does: it shows what fusing
scores (each list divided by its best) would give in place of reciprocal ranks.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from refdraft.index_builder.build import BuildOptions, build_index
from refdraft.index_builder.chunking import ChunkOptions
from refdraft.index_builder.documents import Problem
from refdraft.retriever.index import Index, SearchMode
from refdraft.retriever.tokenizer import Tokenizer

DEPTHS = (1, 5, 10)
MODES: tuple[SearchMode, ...] = ("bm25", "dense")
# Longer than any paragraph, so that a passage is a paragraph and recall means what it says.
WHOLE = ChunkOptions(passage_tokens=4096, overlap_tokens=0)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph and the questions it answers."""

    id: str
    title: str
    text: str
    questions: tuple[str, ...]


def paragraphs(path: Path) -> Iterator[Paragraph]:
    """Paragraphs of a file in SQuAD's format."""
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        title = article["title"].replace("_", " ")
        for number, paragraph in enumerate(article["paragraphs"]):
            questions = tuple(pair["question"] for pair in paragraph["qas"])
            yield Paragraph(f"{title}/{number}", title, paragraph["context"], questions)


def measure(corpus: list[Paragraph], tokenizer: Tokenizer, *, titles: bool) -> dict[str, dict[str, float]]:
    """Recall and milliseconds a query, by mode."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "paragraphs.jsonl"
        with source.open("w", encoding="utf-8") as stream:
            for paragraph in corpus:
                row = {"id": paragraph.id, "text": paragraph.text, "title": paragraph.title if titles else ""}
                stream.write(json.dumps(row) + "\n")
        out = Path(folder) / "index"
        build_index([source], out, tokenizer, BuildOptions(chunks=WHOLE), _refuse)
        with Index.open(out) as index:
            assert index.manifest.passages == len(corpus)
            index.search("warm up", top_k=1)
            searches: dict[str, Callable[[str], list[int]]] = {
                mode: partial(_search, index, mode) for mode in index.modes
            }
            searches["relative_score"] = partial(_relative_score, index)
            return {name: _recall(corpus, search) for name, search in searches.items()}


def _recall(corpus: list[Paragraph], search: Callable[[str], list[int]]) -> dict[str, float]:
    found = dict.fromkeys(DEPTHS, 0)
    asked = 0
    started = time.perf_counter()
    for number, paragraph in enumerate(corpus):  # read in order, so this is the passage's number too
        for question in paragraph.questions:
            numbers = search(question)
            asked += 1
            for depth in DEPTHS:
                found[depth] += number in numbers[:depth]
    seconds = time.perf_counter() - started
    recall = {f"recall@{depth}": round(count / asked, 4) for depth, count in found.items()}
    return {**recall, "ms_per_query": round(1000 * seconds / asked, 3)}


def _search(index: Index, mode: SearchMode, question: str) -> list[int]:
    return [hit.number for hit in index.search(question, top_k=max(DEPTHS), mode=mode)]


def _relative_score(index: Index, question: str) -> list[int]:
    scores: dict[int, float] = {}
    for mode in MODES:
        hits = index.search(question, top_k=100, mode=mode)
        for hit in hits:
            scores[hit.number] = scores.get(hit.number, 0.0) + hit.score / hits[0].score
    return sorted(scores, key=lambda number: (-scores[number], number))


def _refuse(problem: Problem) -> None:
    raise SystemExit(str(problem))


def main() -> int:
    """Run, print, write; 1 where the data is absent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = Path(__file__).parent
    parser.add_argument("--data", type=Path, default=root / "../../shared/data/xquad/xquad.en.json")
    parser.add_argument("--tokenizer", type=Path, help="default: the default model's")
    parser.add_argument("--out", type=Path, default=root / "results" / "retrieval.json")
    arguments = parser.parse_args()
    if not arguments.data.is_file():
        print(f"{arguments.data} does not exist: name XQuAD's xquad.en.json with --data", file=sys.stderr)
        return 1
    tokenizer = Tokenizer.load(arguments.tokenizer or _default_tokenizer())
    corpus = list(paragraphs(arguments.data))
    settings = {
        "without_titles": measure(corpus, tokenizer, titles=False),
        "with_titles": measure(corpus, tokenizer, titles=True),
    }
    result = {
        "data": "XQuAD (en)",
        "passages": len(corpus),
        "questions": sum(len(paragraph.questions) for paragraph in corpus),
        **settings,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for setting, rows in settings.items():
        heads = "".join(f"{f'@{depth}':>8}" for depth in DEPTHS)
        print(f"\n{setting.replace('_', ' '):18}{heads}   ms/query")
        for mode, row in rows.items():
            cells = "".join(f"{row[f'recall@{depth}']:8.3f}" for depth in DEPTHS)
            print(f"{mode:18}{cells}{row['ms_per_query']:11.2f}")
    return 0


def _default_tokenizer() -> Path:
    from refdraft.service.default_model import default_model_directory

    return default_model_directory()


if __name__ == "__main__":
    sys.exit(main())
