"""Where refdraft keeps what it made once: converted models and compiled code."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """Return that folder: REFDRAFT_CACHE, else `refdraft` in the user's cache folder."""
    if chosen := os.environ.get("REFDRAFT_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "refdraft"
