"""A run folder is private, survives failures, and is found by whatever a person remembers of it."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hotlap import store
from hotlap.errors import RecordUnreadable, RunFolderUnwritable, RunNotFound
from hotlap.records import private
from hotlap.records.observation import Observation
from hotlap.store import Run, create, every, find, home
from tests.observations import observation

COMMAND = ("python", "train.py")


@pytest.fixture
def unwritable(tmp_path: Path):
    """A path below a file: nobody can write there, not even root."""
    path = tmp_path / "taken"
    path.write_text("a file")
    return path


def test_a_record_is_read_back_as_saved(tmp_path):
    run = create(COMMAND, tmp_path)
    path = run.save("observation", observation())
    assert path == run.folder / "observation.json"
    assert Run(run.folder).observation() == observation()


def test_saving_again_replaces_the_record_and_leaves_nothing_else(tmp_path):
    run = create(COMMAND, tmp_path)
    run.save("observation", observation())
    run.save("observation", replace(observation(), steps=7))
    assert run.observation().steps == 7
    assert [path.name for path in run.folder.iterdir()] == ["observation.json"]


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    run = create(COMMAND, tmp_path)
    run.save("observation", observation())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private, "write_text", full)
    with pytest.raises(RunFolderUnwritable, match=r"No space left on device.*--run-dir"):
        run.save("observation", replace(observation(), steps=7))
    monkeypatch.undo()
    assert run.observation() == observation()


def test_a_reader_never_sees_half_a_record(tmp_path, monkeypatch):
    """The new record appears under its name only once it is complete."""
    run = create(COMMAND, tmp_path)
    run.save("observation", observation())
    seen = []
    rename = Path.replace

    def spying(self, target):
        seen.append((Run(run.folder).observation().steps, Path(self).read_text()[-2:]))
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", spying)
    run.save("observation", replace(observation(), steps=7))
    assert seen == [(observation().steps, "}\n")]


def test_names_with_dots_do_not_share_a_draft(tmp_path):
    run = create(COMMAND, tmp_path)
    assert run.save("trial.1", observation()).name == "trial.1.json"
    assert run.save("trial.2", observation()).name == "trial.2.json"
    assert run.load("trial.1", Observation) == observation()


def test_a_run_is_named_after_its_time_and_its_script(tmp_path):
    names = {
        ("python", "src/train.py", "--lr", "1"): "train",
        ("python", "-m", "project.train", "--lr", "1"): "train",
        ("python", "-m", "project"): "project",
        ("torchrun", "--nproc-per-node", "2", "train.py"): "train",
        ("./my train!",): "my-train-",
        ("accelerate", "launch", "fine_tune.py"): "fine_tune",
    }
    for command, name in names.items():
        stamp, _, subject = create(command, tmp_path).id.partition("-")
        assert len(stamp) == 8
        assert subject.split("-", 1)[1].startswith(name), command


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path):
    runs = [create(COMMAND, tmp_path) for _ in range(5)]
    assert len({run.folder for run in runs}) == 5
    assert all(run.folder.is_dir() for run in runs)


def test_runs_are_kept_out_of_version_control_and_a_users_own_rule_is_respected(tmp_path):
    create(COMMAND, tmp_path)
    ignore = tmp_path / ".gitignore"
    assert ignore.read_text() == "*\n"
    ignore.write_text("mine\n")
    create(COMMAND, tmp_path)
    assert ignore.read_text() == "mine\n"


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / "runs" / name).mkdir(parents=True)
        (root / "runs" / name / "diagnosis.json").write_text("{}")


def test_a_run_is_found_by_id_by_prefix_by_path_or_as_the_newest(tmp_path):
    make(tmp_path, "20260101-120000-train", "20260102-120000-train", "20260103-120000-other")
    assert find("20260102-120000-train", tmp_path).id == "20260102-120000-train"
    assert find("20260101", tmp_path).id == "20260101-120000-train"
    assert find("2026010", tmp_path).id == "20260103-120000-other", "the newest of those that match"
    assert find(str(tmp_path / "runs" / "20260101-120000-train"), None).id == "20260101-120000-train"
    assert find(None, tmp_path).id == "20260103-120000-other"


def test_an_exact_id_wins_over_longer_ones_that_begin_with_it(tmp_path):
    make(tmp_path, "20260101-120000-train", "20260101-120000-train-2", "20260101-120000-train-10")
    assert find("20260101-120000-train", tmp_path).id == "20260101-120000-train"


def test_the_last_of_many_runs_in_one_second_is_the_newest(tmp_path):
    made = [create(COMMAND, tmp_path) for _ in range(12)]
    same_second = [run for run in made if run.id.startswith(made[-1].id[:15])]
    assert every(tmp_path)[-1].id == same_second[-1].id


def test_stray_files_are_not_taken_for_runs(tmp_path):
    make(tmp_path, "20260101-120000-train")
    (tmp_path / "runs" / "99999999-note.txt").write_text("x")
    assert find(None, tmp_path).id == "20260101-120000-train"


def test_a_folder_of_the_project_is_not_taken_for_a_run(tmp_path, monkeypatch):
    """`hotlap show 2026` next to a folder named 2026."""
    make(tmp_path, "20260101-120000-train")
    (tmp_path / "2026").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find("2026", tmp_path).id == "20260101-120000-train"


def test_a_missing_run_is_reported_with_the_command_to_type(tmp_path):
    with pytest.raises(RunNotFound, match=r"hotlap profile python train\.py"):
        find(None, tmp_path)
    make(tmp_path, "20260101-120000-train")
    with pytest.raises(RunNotFound, match="no run named 2031; the newest is 20260101-120000-train"):
        find("2031", tmp_path)


def test_a_run_without_the_record_says_so(tmp_path):
    run = create(COMMAND, tmp_path)
    with pytest.raises(RunNotFound, match="saved no diagnosis"):
        run.diagnosis()


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00"])
def test_rejects_a_damaged_record_by_name(tmp_path, content):
    run = create(COMMAND, tmp_path)
    (run.folder / "observation.json").write_bytes(content)
    with pytest.raises(RecordUnreadable, match=r"observation\.json"):
        run.observation()


def test_an_unwritable_folder_is_reported_with_the_flag_to_use(unwritable):
    with pytest.raises(RunFolderUnwritable, match=r"taken is not a folder; .*--run-dir"):
        create(COMMAND, unwritable)


def test_reports_a_run_folder_that_vanished(tmp_path):
    run = create(COMMAND, tmp_path)
    run.folder.rmdir()
    with pytest.raises(RunFolderUnwritable, match="--run-dir"):
        run.save("observation", observation())


# Where runs are saved


@pytest.fixture
def state(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("HOTLAP_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state" / "hotlap"


def test_each_project_has_a_folder_of_its_own_outside_of_it(state, tmp_path, monkeypatch):
    homes = []
    for name in ("one/same", "other/same", "one/with space\x1b"):
        (tmp_path / name).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name)
        create(COMMAND)
        homes.append(home())
        assert list((tmp_path / name).iterdir()) == []
    assert len(set(homes)) == 3
    assert [home.parent for home in homes] == [state] * 3
    assert [home.name.rpartition("-")[0] for home in homes] == ["same", "same", "with-space"]


def test_a_project_is_the_same_through_any_link(state, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path / "real")
    real = home()
    monkeypatch.chdir(tmp_path / "link")
    assert home() == real


def test_the_environment_overrides_the_folder(state, monkeypatch):
    monkeypatch.setenv("HOTLAP_DIR", "/elsewhere")
    assert home() == Path("/elsewhere")
    assert store.root() == state, "the key never moves"


def test_the_folder_is_in_the_home_when_the_variable_is_unset_or_relative(state, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setattr(sys, "platform", "linux")
    assert store.root() == tmp_path / ".local/state/hotlap"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert store.root() == tmp_path / "Library/Application Support/hotlap"
    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    with pytest.raises(RunFolderUnwritable, match=r"there is no home folder .*missing; choose a place: --run-dir DIR"):
        create(COMMAND)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("umask", [0, 0o022, 0o777])
def test_files_and_folders_are_private_whatever_the_umask(umask, state):
    before = os.umask(umask)
    try:
        run = create(COMMAND)
        run.save("observation", observation())
    finally:
        os.umask(before)
    paths = [state.parent, *state.parent.rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o600}


def in_its_place(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        (path.parent / "target").mkdir()
        path.symlink_to(path.parent / "target")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "file":
        path.write_text("a file")
    else:
        path.mkdir()
        path.chmod(0o777)


@pytest.mark.parametrize("kind", ["link", "pipe", "file", "open to all"])
@pytest.mark.parametrize("which", ["root", "project", "runs"])
def test_rejects_an_unsafe_folder(kind, which, state):
    in_its_place({"root": state, "project": home(), "runs": home() / "runs"}[which], kind)
    with pytest.raises(RunFolderUnwritable, match="--run-dir DIR") as refused:
        create(COMMAND)
    assert "\n" not in str(refused.value)


def test_rejects_a_folder_of_another_user(state, answering, constants):
    create(COMMAND)
    answering(os, getuid=4321)
    constants(private, ROOT=4322)  # the tests may run as root, whose folders are always accepted
    with pytest.raises(RunFolderUnwritable, match="belongs to another user"):
        create(COMMAND)


def test_without_a_home_a_private_temporary_folder_is_used(state, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = store.temporary_root()
    assert folder == tmp_path / f"hotlap-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    in_its_place(folder, "link")
    other = store.temporary_root()
    assert other.parent == tmp_path
    assert not other.is_symlink()
    assert other.name.startswith("hotlap-")
    assert other != folder


def test_does_not_wait_for_a_record_that_is_a_pipe(state):
    run = create(COMMAND)
    os.mkfifo(run.folder / "observation.json")
    with pytest.raises(RecordUnreadable, match="is a pipe, not a file"):
        run.observation()
