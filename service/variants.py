"""Which tokens may stand for one another at the place where a span begins."""

import string

import numpy as np
from numpy.typing import NDArray

from refdraft.decoder.pool import SENTENCE_END
from refdraft.retriever.tokenizer import Tokenizer

_SPACE_MARKS = "\u0120\u2581"  # how byte-level and SentencePiece vocabularies write a space
_NEWLINE_MARKS = "\u010a\n"
_SENTENCE_MARKS = frozenset(".?!\u2026\u3002\uff01\uff1f")
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)  # other letters may be bytes in disguise


def token_classes(tokenizer: Tokenizer) -> NDArray[np.int32]:
    """The class of each token id, int32 [vocabulary]: equal for tokens that differ in case or a leading space only.

    Tokens that end a sentence or a line are all of class SENTENCE_END, whatever quotes and brackets they have.
    """
    classes = np.zeros(tokenizer.vocabulary_size, np.int32)
    numbers: dict[str, int] = {}
    for text, token in tokenizer.backend.get_vocab(with_added_tokens=True).items():
        if token in tokenizer.special_ids:
            word = f"{token}\n"  # like nothing else
        elif _ends_sentence(text):
            continue
        else:
            word = text.translate(_LOWER).lstrip(_SPACE_MARKS + " ") or text
        classes[token] = numbers.setdefault(word, SENTENCE_END + 1 + len(numbers))
    return classes


def _ends_sentence(text: str) -> bool:
    if any(mark in text for mark in _NEWLINE_MARKS):
        return True
    marks = text.lstrip(_SPACE_MARKS + " ")
    return not _SENTENCE_MARKS.isdisjoint(marks) and not any(character.isalnum() for character in marks)
