"""Inner loops over arrays, compiled by numba when they are first called and kept on disk from then on."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from numba import njit
from numba.core import config

from refdraft.cache import cache_directory

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Without the counting of references to arrays, which took nine tenths of the time.
_OPTIONS: dict[str, Any] = {"nogil": True, "_nrt": False}
_settings: Any = config  # its attributes are made at run time


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function of numbers and arrays, which must not make arrays of its own.

    It releases the interpreter's lock. `py_func` of the result is the function itself.
    """
    elsewhere, _settings.CACHE_DIR = _settings.CACHE_DIR, _directory()
    try:
        fast: Callable[_P, _R] = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # nowhere to write: compiled anew in every process
        fast = njit(**_OPTIONS)(function)
    finally:
        _settings.CACHE_DIR = elsewhere
    return fast


@cache
def _directory() -> str:
    """Where compiled code is kept, by the text of all files: numba does not see a change in another function's file."""
    text = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return str(cache_directory() / "compiled" / hashlib.sha256(text).hexdigest()[:16])
