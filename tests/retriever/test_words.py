from refdraft.retriever.words import words


def test_words_fold_case_and_split_at_punctuation() -> None:
    assert words("The Straße, __init__ & O'Neill's 3.5") == ["the", "strasse", "__init__", "o", "neill", "s", "3", "5"]


def test_chinese_and_japanese_signs_are_words_by_themselves() -> None:
    assert words("東京tower") == ["東", "京", "tower"]
