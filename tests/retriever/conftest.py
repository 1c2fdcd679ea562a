from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tokenizers

from refdraft.index_builder.build import BuildOptions, build_index
from refdraft.index_builder.documents import Problem
from refdraft.retriever.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FACTS = {
    "otter": "Otters hold hands while they sleep. The sea otter keeps a favourite stone in a pocket of skin.",
    "bridge": "The bridge at Remagen fell in March 1945. Engineers had already crossed the river by then.",
    "emoji": "Smile 😀 at the \U0001d49clgebra lecture. The naïve café owner laughed 😀😀 all day.",
    "bread": "Sourdough bread rises slowly.\r\n\r\nBakers feed the starter with flour and water every day.",
}


@pytest.fixture(scope="session")
def tokenizer(tiny_tokenizer: "PreTrainedTokenizerFast") -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(tiny_tokenizer.backend_tokenizer.to_str()))


def fail(problem: Problem) -> None:
    raise AssertionError(str(problem))


@pytest.fixture(scope="session")
def facts(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """An index of four short documents; copy it before changing it."""
    folder = tmp_path_factory.mktemp("facts")
    for name, text in FACTS.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8", newline="")
    out = folder / "index"
    build_index([folder], out, tokenizer, BuildOptions(), fail)
    return out
