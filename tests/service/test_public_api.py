"""`import refdraft`: everything that is promised, and nothing heavy."""

import subprocess
import sys

import pytest

import refdraft


def test_importing_is_light() -> None:
    code = (
        "import sys, refdraft\n"
        "print({'torch', 'transformers', 'grpc', 'google.protobuf', 'numpy', 'importlib.metadata'}"
        " & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_the_client_needs_neither_torch_nor_numpy() -> None:
    code = "import sys, refdraft; refdraft.Client; print({'torch', 'numpy'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


@pytest.mark.parametrize("name", refdraft.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(refdraft, name) is not None
    assert name in dir(refdraft)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="moon"):
        refdraft.moon  # noqa: B018
