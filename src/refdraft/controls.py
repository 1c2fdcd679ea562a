"""Control characters, which a document or an answer may hold and a terminal must not obey."""

_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def neutral(text: str) -> str:
    """Make the control characters of a text visible, all but newlines and tabs."""
    return text.translate(_CONTROLS)
