"""The faults of `mutations.py` can still be planted; that they are caught is for the script itself to show."""

import shutil
from pathlib import Path

import pytest

from tests.lossless.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_fault_still_applies(mutation: Mutation, tmp_path: Path) -> None:
    path = tmp_path / mutation.file
    path.parent.mkdir()
    shutil.copy(ROOT / mutation.file, path)
    mutation.apply(tmp_path)
    compile(path.read_text(), str(path), "exec")


def test_a_fault_whose_text_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("a = 1\n")
    with pytest.raises(ValueError, match=r"a fault: file\.py holds the text to replace 0 times, not once"):
        Mutation("a fault", "file.py", "b = 1", "b = 2").apply(tmp_path)
