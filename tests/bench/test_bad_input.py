"""Input that cannot work is rejected in one line, with what to type instead, before anything runs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest

from hotlap.bench import data, session, surroundings, workloads
from hotlap.errors import DataNotMade, HotlapError, NotEnoughRoom, PackageMissing, TorchUnusable, UnknownName

ROOT = Path(__file__).resolve().parents[2]
OTHERS = ("torch", "numpy", "scipy", "matplotlib", "pandas", "h5py", "lightning", "accelerate")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["son"], 2, "hotlap: no workload named 'son'; did you mean sun? there are moon, sun"),
        (["--arms", "naive,lightening"], 2, "hotlap: no arm named 'lightening'; did you mean lightning? there are"),
        (["--arms", "naive,"], 2, "hotlap: no arm named ''; there are naive"),
        (["--size", "huge"], 2, "--size huge: must be tiny, small or report"),
        (["--seeds", "0"], 2, "--seeds 0: must be a whole number, at least 1"),
        (["--epochs", "ten"], 2, "--epochs ten: must be a whole number, at least 1"),
        (["--frobnicate"], 2, "no such option: --frobnicate"),
    ],
)
def test_a_wrong_argument_gets_one_line(stage, arguments, code, message):
    done = stage.bench(*arguments)
    assert done.returncode == code
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert stage.calls() == []
    assert not stage.out.exists()


def test_reports_a_missing_gpu(stage, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = stage.bench("--device", "cuda")
    assert done.returncode == 67
    assert done.stderr == "hotlap: --device cuda was given, but torch sees no GPU here; use --device cpu\n"
    assert not stage.out.exists()


def test_a_whole_bench_runs_from_the_command_line(stage):
    """When one arm breaks, the exit code is 1 and every result is still there."""
    stage.play(sun__limit={"exit": 4, "complaint": "out of luck"})
    done = stage.bench("sun", "--arms", "naive,limit,accelerate", "--seeds", "1", "--device", "cpu", as_typed=True)
    assert done.returncode == 1
    assert "broken: sun limit, seed 0: exit code 4: out of luck" in done.stdout
    assert "    out of luck" in done.stderr
    for kind in ("json", "md", "png", "svg"):
        assert stage.out.with_suffix(f".{kind}").stat().st_size > 500
    assert "(result.svg)" in stage.out.with_suffix(".md").read_text()


def test_a_missing_framework_is_reported_with_what_to_install(stage, ask, monkeypatch):
    monkeypatch.setattr(surroundings, "find_spec", lambda name: None if name == "lightning" else "here")
    with pytest.raises(PackageMissing) as refused:
        session.prepare(ask())
    assert str(refused.value) == (
        "the requested arms need lightning; type: pip install 'hotlap[peers]', "
        "or leave out the arms that need it: --arms naive,run,engine,limit"
    )
    session.prepare(ask(arms=("naive", "accelerate")))


def test_reports_missing_packages_of_the_workloads_and_torch(ask, monkeypatch, answering):
    monkeypatch.setattr(surroundings, "find_spec", lambda name: None if name in ("pandas", "h5py") else "here")
    with pytest.raises(PackageMissing, match=r"needs pandas and h5py; type: pip install 'hotlap\[bench\]'"):
        session.prepare(ask())
    answering(surroundings, find_spec=None)
    with pytest.raises(TorchUnusable, match="pip install torch"):
        session.prepare(ask())


def test_too_little_disk_is_reported_before_anything_is_generated(stage, ask):
    with pytest.raises(NotEnoughRoom, match=r"size report needs 8589934592.00 GiB but .* free; .*HOTLAP_DATA"):
        session.prepare(ask(size="report"))
    assert not (stage.folder / "data").exists()
    assert not stage.out.exists()


def test_too_little_memory_is_reported_before_anything_is_generated(stage, ask):
    with pytest.raises(NotEnoughRoom, match=r"moon of size small needs about .* GiB of memory but .* smaller --size"):
        session.prepare(ask(size="small"))
    assert not (stage.folder / "data").exists()


def test_existing_data_needs_no_disk(stage):
    assert data.needs(stage.root, "sun", "tiny").bytes_needed == 1000
    data.make(stage.root, "sun", "tiny", lambda workload, elapsed: None)
    assert data.needs(stage.root, "sun", "tiny").bytes_needed == 0


def test_a_workload_without_a_memory_figure_needs_at_least_that_of_torch(stage):
    assert data.needs(stage.root, "sun", "tiny").memory_mb >= data.PROCESS_MB


def test_a_failing_generator_is_reported_with_its_last_line(stage, bench):
    (stage.root / "sun" / "data.py").write_text("raise RuntimeError('no sunshine')\n")
    with pytest.raises(DataNotMade, match="generator of sun cannot start: RuntimeError: no sunshine"):
        bench(workloads=("sun",))


def test_every_bundled_workload_states_its_needs_and_which_way_is_better(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLAP_DATA", str(tmp_path))
    place = ROOT / "workloads"
    assert workloads.names(place) == ("banknotes", "battery_fnn", "battery_lstm", "bloom", "leak")
    better = {name: workloads.task(place, name).higher_is_better for name in workloads.names(place)}
    assert better == {"banknotes": True, "battery_fnn": False, "battery_lstm": False, "bloom": True, "leak": True}
    for name in workloads.names(place):
        needs = data.needs(place, name, "report")
        assert needs.bytes_needed > 1_000_000
        assert needs.memory_mb < psutil.virtual_memory().total
    assert list(tmp_path.iterdir()) == [], "asking makes nothing"


def test_a_name_unlike_any_other_is_rejected_without_a_suggestion():
    with pytest.raises(UnknownName, match="no arm named 'zzz'; there are naive, limit"):
        workloads.chosen("arm", ["zzz"], ["naive", "limit"])


def test_reports_a_folder_without_workloads(tmp_path, monkeypatch):
    monkeypatch.setenv("HOTLAP_WORKLOADS", str(tmp_path))
    with pytest.raises(HotlapError, match="HOTLAP_WORKLOADS"):
        workloads.folder()


def test_a_checkout_uses_its_own_workloads(monkeypatch):
    monkeypatch.delenv("HOTLAP_WORKLOADS", raising=False)
    assert workloads.folder() == ROOT / "workloads"


def test_the_wheel_contains_the_workloads_and_finds_them(tmp_path):
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    found = [path.relative_to(ROOT) for path in (ROOT / "workloads").rglob("*") if path.suffix in (".py", ".md")]
    assert len(found) > 25
    assert [path for path in found if not (tmp_path / "installed" / "hotlap" / path).exists()] == []
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HOTLAP")}
    code = "from hotlap.bench import workloads; print(workloads.folder())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": str(tmp_path / "installed")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()) == (tmp_path / "installed" / "hotlap" / "workloads").resolve()


@pytest.mark.parametrize("words", [["--help"], ["bench", "--help"], ["profile", "--help"]])
def test_help_needs_no_package_but_hotlap(words):
    hidden = f"import sys; sys.modules.update(dict.fromkeys({OTHERS!r}));"
    code = f"{hidden} from hotlap.cli import main; sys.argv = ['hotlap', *{words!r}]; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
