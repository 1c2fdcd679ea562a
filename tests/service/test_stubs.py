"""The committed stubs are what the protos generate, and the protos keep the style guide."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
ENVIRONMENT = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}

pytest.importorskip("grpc_tools", reason="needs refdraft[dev]")


def test_stubs_are_fresh(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python")]
    outputs += [f"--{kind}_out=quiet:{tmp_path}" for kind in ("mypy", "mypy_grpc")]
    protos = [str(path) for path in (ROOT / "protos").rglob("*.proto")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'protos'}", *outputs, *protos],
        check=True,
        env=ENVIRONMENT,
    )
    committed = ROOT / "src/refdraft/v1"
    fresh = {path.name: path.read_text() for path in (tmp_path / "refdraft/v1").iterdir()}
    assert fresh.keys() == {path.name for path in committed.glob("*_pb2*")}
    stale = [name for name, text in fresh.items() if (committed / name).read_text() != text]
    assert not stale, "run `make stubs`"


def test_protos_pass_buf_lint() -> None:
    result = subprocess.run([BIN / "buf", "lint"], cwd=ROOT / "protos", capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
