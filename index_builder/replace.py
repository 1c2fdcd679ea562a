"""A new directory in the place of an old one, so that every moment has either the old or the new."""

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refdraft.errors import PreconditionError
from refdraft.retriever.manifest import MANIFEST_FILE, listed_files

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@contextmanager
def replacing(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield an empty sibling of `target` to fill; on success it takes the target's place, else it is removed.

    Args:
        target: Directory to make; its parents are made too.
        force: Whether an index that is there may be replaced.

    Raises:
        PreconditionError: The target exists and may not be replaced, or is being built right now.
    """
    target = target.absolute()
    _check_replaceable(target, force)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    partial.mkdir(exist_ok=True)
    with _lock(partial):
        try:
            for path in partial.iterdir():  # left by a build that was killed
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            yield partial
            for path in (*partial.rglob("*"), partial):
                _sync(path)
            _check_replaceable(target, force)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _move(partial, target)
    _sync(target.parent)


def _check_replaceable(target: Path, force: bool) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise PreconditionError(f"{target} is no plain directory: choose another place")
    if not target.exists() or not any(target.iterdir()):
        return
    files = listed_files(target)
    if files is None:
        raise PreconditionError(f"{target} holds something that is not an index: choose another place")
    if not force:
        raise PreconditionError(f"{target} is an index already: add --force to replace it")
    for path in target.rglob("*"):
        if not path.is_dir() and path.relative_to(target).as_posix() not in {MANIFEST_FILE, *files}:
            raise PreconditionError(f"{path} does not belong to the index: move it away first")


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Keep other builds off a directory; the lock goes with the process, so a killed build leaves none."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            moved = not os.path.samestat(os.fstat(descriptor), directory.stat())
        except (BlockingIOError, FileNotFoundError):
            moved = True
        if moved:
            raise PreconditionError(f"{directory} is in use by another build: wait for it")
        yield
    finally:
        os.close(descriptor)


def _move(new: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        new.rename(target)
        return
    with _lock(target):  # after the exchange it has the name that the next build starts with
        old = _exchange(new, target)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(new: Path, target: Path) -> Path:
    """Put `new` in the place of `target`; where the old one is now."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(target), _RENAME_EXCHANGE):
        return new
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(code, os.strerror(code), str(target))
    # A file system that cannot exchange: between these two lines the old index has only its other name.
    old = target.with_name(f".{target.name}.old")
    target.rename(old)
    new.rename(target)
    return old


def _sync(path: Path) -> None:
    """Have the operating system put a file, or the names in a directory, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
