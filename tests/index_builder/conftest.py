from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tokenizers

from refdraft.index_builder.documents import Columns, Document, Problem
from refdraft.index_builder.readers import Reader
from refdraft.retriever.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Read = Callable[..., tuple[list[Document], list[str]]]


@pytest.fixture(scope="session")
def tokenizer(tiny_tokenizer: "PreTrainedTokenizerFast") -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(tiny_tokenizer.backend_tokenizer.to_str()))


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads sources below the test's folder: documents, and problems without the folder's name."""

    def read(*sources: str, columns: Columns | None = None) -> tuple[list[Document], list[str]]:
        problems: list[Problem] = []
        advanced: list[int] = []
        paths = [tmp_path / source for source in sources or (".",)]
        reader = Reader(paths, columns or Columns(), problems.append, advanced.append)
        documents = list(reader)
        assert sum(advanced) <= reader.total_size
        return documents, [str(problem).replace(f"{tmp_path}/", "") for problem in problems]

    return read
