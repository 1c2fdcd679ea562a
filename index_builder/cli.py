"""The `refdraft index` command. Anything heavy is imported by the function that runs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from refdraft.controls import neutral

if TYPE_CHECKING:
    from refdraft.index_builder.documents import Problem
    from refdraft.retriever.index import Hit
    from refdraft.retriever.manifest import Manifest

_Commands = argparse._SubParsersAction  # argparse has no public name for what add_subparsers returns


def add_parser(commands: _Commands[argparse.ArgumentParser], *, default_tokenizer: Callable[[], Path]) -> None:
    """Add `index` and its four verbs; each sets `run`, a function of the parsed arguments to an exit code.

    Args:
        commands: Where to add.
        default_tokenizer: Gives the folder of the tokenizer to use without --tokenizer; called only then.
    """
    index = commands.add_parser("index", help="build, search and check indexes of reference text")
    verbs = index.add_subparsers(dest="verb", metavar="VERB", required=True)
    _add_build(verbs, default_tokenizer)
    info = verbs.add_parser("info", help="what an index holds and was built with")
    info.add_argument("directory", type=_path, metavar="DIR")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(run=_info)
    search = verbs.add_parser("search", help="find passages")
    search.add_argument("directory", type=_path, metavar="DIR")
    search.add_argument("query", metavar="QUERY")
    search.add_argument("--top-k", type=int, default=5, metavar="N", help="most hits (default 5)")
    search.add_argument("--mode", choices=("bm25", "dense", "hybrid"), help="default: hybrid where it can be")
    search.add_argument("--json", action="store_true", help="print one JSON object a hit")
    search.set_defaults(run=_search)
    verify = verbs.add_parser("verify", help="check every byte against the manifest")
    verify.add_argument("directory", type=_path, metavar="DIR")
    verify.set_defaults(run=_verify)


def _add_build(verbs: _Commands[argparse.ArgumentParser], default_tokenizer: Callable[[], Path]) -> None:
    build = verbs.add_parser(
        "build",
        help="build an index",
        description="Index .txt, .md, .html, .jsonl, .csv and .parquet files, and folders of them. "
        "A document's id is its path below SOURCE, or below the deepest folder that holds all of several sources.",
    )
    build.add_argument("sources", nargs="+", type=_path, metavar="SOURCE")
    build.add_argument("--out", required=True, type=_path, metavar="DIR", help="the index to make")
    build.add_argument("--tokenizer", type=_path, metavar="DIR", help="folder with the target's tokenizer.json")
    build.add_argument("--passage-tokens", type=int, default=256, metavar="N", help="most tokens a passage has")
    build.add_argument("--overlap-tokens", type=int, default=32, metavar="N", help="most it repeats of the last")
    build.add_argument("--text-column", default="text", metavar="NAME", help="default: text")
    build.add_argument("--id-column", metavar="NAME", help="default: id where there is one, else FILE:LINE")
    build.add_argument("--title-column", metavar="NAME", help="default: title where there is one")
    build.add_argument(
        "--metadata-column", action="append", default=[], metavar="NAME", help="keep this column; repeatable"
    )
    build.add_argument("--no-dense", action="store_true", help="BM25 only, no vectors")
    build.add_argument(
        "--on-error", choices=("skip", "fail"), default="skip", help="what to do about text that cannot be read"
    )
    build.add_argument("--force", action="store_true", help="replace the index that is at DIR")
    build.add_argument("--quiet", action="store_true", help="no progress bars and no closing line")
    build.set_defaults(run=_build, default_tokenizer=default_tokenizer)


def _path(text: str) -> Path:
    if not text:  # mostly an unset shell variable; Path("") would be the current folder
        raise argparse.ArgumentTypeError("is empty: name a file or folder")
    return Path(text)


def _build(arguments: argparse.Namespace) -> int:
    from refdraft.index_builder.build import BuildOptions, build_index
    from refdraft.index_builder.chunking import ChunkOptions
    from refdraft.index_builder.documents import Columns
    from refdraft.retriever.tokenizer import Tokenizer

    options = BuildOptions(
        chunks=ChunkOptions(passage_tokens=arguments.passage_tokens, overlap_tokens=arguments.overlap_tokens),
        columns=Columns(
            id=arguments.id_column,
            text=arguments.text_column,
            title=arguments.title_column,
            metadata=tuple(arguments.metadata_column),
        ),
        dense=not arguments.no_dense,
        force=arguments.force,
        progress=not arguments.quiet and sys.stderr.isatty(),
    )
    started = time.monotonic()
    tokenizer = Tokenizer.load(arguments.tokenizer or arguments.default_tokenizer())
    report = _fail if arguments.on_error == "fail" else _skip
    manifest = build_index(arguments.sources, arguments.out, tokenizer, options, report)
    if not arguments.quiet:
        print(f"{arguments.out}: {_counts(manifest)}, {time.monotonic() - started:.1f} s", file=sys.stderr)
    return 0


def _fail(problem: Problem) -> None:
    from refdraft.errors import SourceFormatError

    raise SourceFormatError(f"{problem} (--on-error skip leaves it out)")


def _skip(problem: Problem) -> None:
    from tqdm import tqdm

    tqdm.write(f"skipped {problem}", file=sys.stderr)


def _info(arguments: argparse.Namespace) -> int:
    from refdraft.retriever.manifest import Manifest

    manifest = Manifest.read(arguments.directory)
    manifest.check_sizes(arguments.directory)
    if arguments.json:
        print(json.dumps({**asdict(manifest), "size": manifest.size}, indent=2))
        return 0
    modes = "bm25, dense, hybrid" if manifest.embedder else "bm25"
    print(_counts(manifest))
    print(f"search:     {modes}" + (f" (vectors by {manifest.embedder})" if manifest.embedder else ""))
    print(f"passages:   up to {manifest.passage_tokens} tokens, {manifest.overlap_tokens} of them repeated")
    print(f"tokenizer:  {manifest.tokenizer_fingerprint}, vocabulary {manifest.vocabulary_size:,}")
    return 0


def _search(arguments: argparse.Namespace) -> int:
    from refdraft.retriever.index import Index

    with Index.open(arguments.directory) as index:
        hits = index.search(arguments.query, top_k=arguments.top_k, mode=arguments.mode)
    for rank, hit in enumerate(hits, start=1):
        shown = _hit_json(hit) if arguments.json else _hit_text(rank, hit)
        print(neutral(shown) if sys.stdout.isatty() else shown)
    if not hits:
        print("nothing found", file=sys.stderr)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from refdraft.index_builder.verify import verify_index

    manifest = verify_index(arguments.directory)
    print(f"{arguments.directory}: whole, {_counts(manifest)}")
    return 0


def _counts(manifest: Manifest) -> str:
    return (
        f"{manifest.documents:,} documents, {manifest.passages:,} passages, {manifest.tokens:,} tokens, "
        f"{manifest.size / 1e6:.1f} MB"
    )


def _hit_json(hit: Hit) -> str:
    return json.dumps({"passage": hit.number, "score": hit.score, **asdict(hit.passage)}, ensure_ascii=False)


def _hit_text(rank: int, hit: Hit) -> str:
    passage = hit.passage
    place = f"{passage.document_id} [{passage.start}:{passage.start + len(passage.text)}]"
    return f"{rank}. {place}  {passage.title}  (score {hit.score:.4g})\n   " + " ".join(passage.text.split())
