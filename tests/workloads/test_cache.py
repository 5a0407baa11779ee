"""Generated data is built once, completely or not at all."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

CACHE_FILE = Path(__file__).resolve().parents[2] / "workloads" / "cache.py"

SLOW_BUILDER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {folder_of_cache!r})
import cache

def build(target):
    with open({calls!r}, "a") as calls:
        calls.write("built\\n")
    (target / "rows.csv").write_text("first half\\n")
    time.sleep({pause})
    (target / "labels.csv").write_text("second half\\n")

print(cache.make_once(Path({folder!r}), build, 1))
"""


@pytest.fixture
def cache() -> ModuleType:
    spec = importlib.util.spec_from_file_location("workloads_cache_under_test", CACHE_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def counted_build() -> tuple[list[Path], Callable[[Path], None]]:
    calls: list[Path] = []

    def build(target: Path) -> None:
        calls.append(target)
        (target / "train").mkdir()
        (target / "train" / "rows.csv").write_text("1,2,3\n" * 100)
        (target / "labels.csv").write_text("0\n1\n")

    return calls, build


def start_builder(folder: Path, calls: Path, pause: float) -> subprocess.Popen[str]:
    program = SLOW_BUILDER.format(
        folder_of_cache=str(CACHE_FILE.parent), calls=str(calls), pause=pause, folder=str(folder)
    )
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_data_is_built_once_and_reused(cache, counted_build, tmp_path: Path) -> None:
    calls, build = counted_build
    folder = tmp_path / "leak" / "tiny"
    assert cache.make_once(folder, build, 1) == folder
    assert cache.make_once(folder, build, 1) == folder
    assert len(calls) == 1
    assert set(cache.checksums(folder)) == {"train/rows.csv", "labels.csv"}


@pytest.mark.parametrize("damage", ["truncate", "overwrite", "delete", "torn manifest", "no manifest"])
def test_damaged_data_is_rebuilt(cache, counted_build, tmp_path: Path, damage: str) -> None:
    calls, build = counted_build
    folder = cache.make_once(tmp_path / "leak" / "tiny", build, 1)
    before = cache.checksums(folder)
    rows, manifest = folder / "train" / "rows.csv", folder / cache.MANIFEST
    if damage == "truncate":
        os.truncate(rows, 10)
    elif damage == "overwrite":
        rows.write_text("9,9,9\n" * 100)  # the same size, different bytes
        os.utime(rows, ns=(1, 1))
    elif damage == "delete":
        rows.unlink()
    elif damage == "torn manifest":
        os.truncate(manifest, manifest.stat().st_size // 2)
    else:
        manifest.unlink()
    cache.make_once(folder, build, 1)
    assert len(calls) == 2
    assert cache.checksums(folder) == before


def test_a_copied_folder_is_accepted_by_its_checksums(cache, counted_build, tmp_path: Path) -> None:
    calls, build = counted_build
    folder = cache.make_once(tmp_path / "leak" / "tiny", build, 1)
    for path in folder.rglob("*.csv"):
        os.utime(path, ns=(1, 1))
    cache.make_once(folder, build, 1)
    assert len(calls) == 1


def test_a_build_that_fails_leaves_nothing_behind(cache, counted_build, tmp_path: Path) -> None:
    _, build = counted_build
    folder = tmp_path / "leak" / "tiny"

    def failing(target: Path) -> None:
        build(target)
        raise RuntimeError("the generator broke")

    with pytest.raises(RuntimeError, match="the generator broke"):
        cache.make_once(folder, failing, 1)
    assert [path.name for path in folder.parent.iterdir()] == [".tiny.lock"]
    assert cache.is_complete(cache.make_once(folder, build, 1))


def test_a_killed_build_is_never_read_and_is_cleaned_up(cache, counted_build, tmp_path: Path) -> None:
    calls, build = counted_build
    folder, record = tmp_path / "leak" / "tiny", tmp_path / "calls"
    builder = start_builder(folder, record, pause=60)
    wait_for(lambda: any(folder.parent.glob(".tiny.building-*/rows.csv")))
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    assert not folder.exists()
    cache.make_once(folder, build, 1)
    assert len(calls) == 1
    assert not list(folder.parent.glob(".tiny.building-*"))
    assert set(cache.checksums(folder)) == {"train/rows.csv", "labels.csv"}


def test_two_concurrent_processes_build_once(tmp_path: Path) -> None:
    folder, record = tmp_path / "leak" / "tiny", tmp_path / "calls"
    builders = [start_builder(folder, record, pause=0.5) for _ in range(3)]
    printed = [builder.communicate(timeout=600)[0].strip() for builder in builders]
    assert printed == [str(folder)] * 3
    assert record.read_text() == "built\n"


def test_a_full_disk_is_reported_in_one_line_before_anything_is_built(cache, counted_build, tmp_path: Path) -> None:
    calls, build = counted_build
    with pytest.raises(cache.NotEnoughDisk, match="HOTLAP_DATA") as caught:
        cache.make_once(tmp_path / "leak" / "tiny", build, 1 << 60)
    assert "\n" not in str(caught.value)
    assert calls == []


def test_the_shell_prints_the_folder_or_the_reason(cache, counted_build, tmp_path: Path, capsys) -> None:
    _, build = counted_build

    def ensure(size: str, seed: int = 0, root: Path | None = None) -> Path:
        return cache.make_once(cache.folder("leak", size, seed, 1, root), build, (seed + 1) << (60 * seed))

    assert cache.command_line(ensure, ("tiny",), ["--size", "tiny", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/leak/tiny-seed0-v1\n"
    assert cache.command_line(ensure, ("tiny",), ["--size", "tiny", "--seed", "1", "--root", str(tmp_path)]) == 1
    assert "GiB free" in capsys.readouterr().err


def test_the_root_follows_the_environment(cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOTLAP_DATA", str(tmp_path))
    assert cache.folder("leak", "tiny", 3, 2) == tmp_path / "leak" / "tiny-seed3-v2"
    monkeypatch.delenv("HOTLAP_DATA")
    assert cache.data_root() == Path.home() / ".cache" / "hotlap" / "data"


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.02)
