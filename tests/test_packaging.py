"""What users install: links that got lost in a checkout would give an empty wheel in silence."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "refdraft"
LINKED = ("service", "retriever", "decoder", "index_builder")
UNWANTED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "shared")


def run(*command: str, cwd: Path, pythonpath: Path | None = None) -> str:
    environment = os.environ | ({"PYTHONPATH": str(pythonpath)} if pythonpath else {})
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def source_files() -> set[str]:
    """Return the wheel's expected files, as the folders at the top and the package itself have them."""
    own = [path for path in PACKAGE.glob("*") if path.suffix == ".py" or path.name == "py.typed"]
    own += [path for path in (PACKAGE / "v1").glob("*") if path.suffix in {".py", ".pyi"}]
    linked = [path for folder in LINKED for path in (ROOT / folder).rglob("*.py")]
    names = [path.relative_to(PACKAGE) for path in own] + [path.relative_to(ROOT) for path in linked]
    return {f"refdraft/{name.as_posix()}" for name in names}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build in: what an earlier build left in the real one would go into the wheel too."""
    copy = tmp_path_factory.mktemp("packaging") / "refdraft"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=UNWANTED)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    """The wheel that `pip install .` would build."""
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "direct", cwd=checkout)
    return next((checkout / "direct").glob("*.whl"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def packaged_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    files = packaged_files(wheel)
    assert files == source_files() | {"refdraft/decoder/prior.json"}
    assert "refdraft/py.typed" in files
    for folder in (*LINKED, "v1"):
        assert any(name.startswith(f"refdraft/{folder}/") for name in files), folder


def test_wheel_built_from_the_sdist_is_the_same(wheel: Path, checkout: Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", "through-sdist", cwd=checkout)
    built = checkout / "through-sdist"
    assert list(built.glob("*.tar.gz"))
    assert packaged_files(next(built.glob("*.whl"))) == packaged_files(wheel)


def test_every_module_of_the_wheel_imports(unpacked: Path) -> None:
    files = (name.removesuffix(".py") for name in source_files() if name.endswith(".py"))
    modules = sorted(name.replace("/", ".").removesuffix(".__init__") for name in files)
    modules = [name for name in modules if not name.endswith("__main__")]
    program = (
        "import importlib, refdraft\n"
        f"assert refdraft.__file__.startswith({str(unpacked)!r}), refdraft.__file__\n"
        f"for name in {modules!r}: importlib.import_module(name)"
    )
    run(sys.executable, "-c", program, cwd=unpacked, pythonpath=unpacked)


def test_importing_refdraft_is_quick_and_loads_nothing_heavy(unpacked: Path) -> None:
    program = (
        "import sys, time; start = time.perf_counter(); import refdraft; print(time.perf_counter() - start)\n"
        "heavy = {'torch', 'transformers', 'numpy', 'faiss', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    seconds = [float(run(sys.executable, "-c", program, cwd=unpacked, pythonpath=unpacked)) for _ in range(3)]
    assert min(seconds) < 0.1
