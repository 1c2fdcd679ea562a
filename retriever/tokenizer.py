"""The target's tokenizer, as retrieval and drafting need it: ids, character offsets and an identity."""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray

from refdraft.errors import NotFoundError, PreconditionError

# The parts of tokenizer.json that decide ids. The post-processor only adds special tokens, which nobody here
# asks for; padding and truncation are state of a caller; the decoder works on ids already chosen.
_DECIDES_IDS = ("added_tokens", "normalizer", "pre_tokenizer", "model")


class Tokenizer:
    """A thin face of a `tokenizers.Tokenizer`, which from now on neither truncates nor pads."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer":
        """Read `directory/tokenizer.json`.

        Raises:
            NotFoundError: There is no such file.
            PreconditionError: The file is not a tokenizer.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise NotFoundError(f"{path} does not exist: name the folder of the target model")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise PreconditionError(f"{path} is not a tokenizer: {error}; fetch the model again") from error
        return cls(backend)

    @cached_property
    def vocabulary_size(self) -> int:
        """One more than the highest token id."""
        return 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that `decode` skips."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(token for token, content in added.items() if content.special)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of everything that decides which ids a text becomes."""
        state = json.loads(self.backend.to_str())
        decisive = json.dumps({key: state[key] for key in _DECIDES_IDS}, sort_keys=True)
        return hashlib.sha256(decisive.encode()).hexdigest()

    def encode(self, text: str) -> NDArray[np.int32]:
        """Token ids of a text, int32 [tokens], without special tokens added."""
        return np.asarray(self.backend.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def encode_with_offsets(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Token ids, int32 [tokens], and each token's characters in the text, int64 [tokens, 2], half open.

        Tokens that share one character (bytes of an emoji, say) all carry that character's range.
        """
        encoding = self.backend.encode(text, add_special_tokens=False)
        ids = np.asarray(encoding.ids, dtype=np.int32)
        return ids, np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of many texts, faster than one by one."""
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; special tokens are skipped."""
        return self.backend.decode([int(token) for token in ids], skip_special_tokens=True)
