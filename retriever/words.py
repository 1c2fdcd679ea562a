"""What BM25 takes for a word."""

import re

# Letters and digits in a row, and each Chinese or Japanese sign by itself: those scripts put no spaces between
# words, and a whole clause as one word would never be found again.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")


def words(text: str) -> list[str]:
    """Case-folded words of a text in order; no stop words and no stemming, so that every language is served."""
    return _WORD.findall(text.casefold())
