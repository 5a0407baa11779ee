"""Files that a program writes in a trial are diverted to another folder, and the program cannot tell."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
from pathlib import Path

import pytest
import torch

from hotlap.patch.ledger import Ledger
from hotlap.patch.private_package import _Loader
from hotlap.trial.diversion import divert
from hotlap.trial.foreign import Foreign, first_word, foreign
from hotlap.trial.shadow import Shadow


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working folder with user files, in which every write is diverted."""
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "kept.txt").write_text("the user's")
    (folder / "log.txt").write_text("first\n")
    monkeypatch.chdir(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        monkeypatch.delitem(sys.modules, name)  # a program imports it once its files are diverted
    before = _contents(folder)
    ledger = Ledger()
    divert(Shadow(tmp_path / "scratch", [folder], [tmp_path / "left"]), ledger)
    yield folder
    ledger.close()
    os.chdir(folder)
    assert _contents(folder) == before, "nothing of the user's was touched"


def _contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_a_written_file_is_read_by_relative_and_by_absolute_path(project):
    with open("best.txt", "w") as file:
        file.write("mine")

    assert Path("best.txt").read_text() == "mine"
    assert (project / "best.txt").read_text() == "mine"
    assert Path("best.txt").exists()
    assert os.path.isfile(project / "best.txt")
    assert sorted(os.listdir()) == ["best.txt", "data", "log.txt"]


def test_the_users_own_files_can_still_be_read(project):
    Path("new.txt").write_text("x")

    assert Path("data/kept.txt").read_text() == "the user's"
    assert sorted(path.name for path in Path("data").iterdir()) == ["kept.txt"]


def test_appending_continues_the_existing_file(project):
    with Path("log.txt").open("a") as file:
        file.write("second\n")

    assert Path("log.txt").read_text() == "first\nsecond\n"


def test_a_file_opened_for_update_is_changed_in_the_copy(project):
    with open("log.txt", "r+") as file:
        file.write("FIRST")

    assert Path("log.txt").read_text() == "FIRST\n"


def test_folders_can_be_made_listed_and_filled(project):
    os.makedirs("out/run-1", exist_ok=True)
    Path("out/run-1/a.bin").write_bytes(b"1")
    (project / "data" / "cache").mkdir()
    (project / "data" / "cache" / "b.bin").write_bytes(b"2")

    assert [path.name for path in Path("out").glob("**/*.bin")] == ["a.bin"]
    assert sorted(os.listdir("data")) == ["cache", "kept.txt"]
    assert sorted(entry.name for entry in os.scandir("data")) == ["cache", "kept.txt"]
    assert [names for _, _, names in os.walk("data")] == [["kept.txt"], ["b.bin"]]


def test_exclusive_creation_fails_as_without_hotlap(project):
    with pytest.raises(FileExistsError):
        os.mkdir("data")
    with pytest.raises(FileExistsError):
        open("log.txt", "x")
    with open("lock", "x"):
        pass
    with pytest.raises(FileExistsError):
        open("lock", "x")
    with pytest.raises(FileNotFoundError):
        open("no/such/folder.txt", "w")
    with pytest.raises(FileNotFoundError):
        os.remove("nothing")


def test_removing_a_user_file_only_hides_it(project):
    os.remove("log.txt")

    assert not Path("log.txt").exists()
    assert os.listdir() == ["data"]
    Path("log.txt").write_text("again")
    assert Path("log.txt").read_text() == "again"


def test_a_tree_that_is_removed_and_made_again_is_empty(project):
    shutil.rmtree("data")
    assert not os.path.exists("data/kept.txt")
    os.mkdir("data")

    assert os.listdir("data") == []
    assert not Path("data/kept.txt").exists()


def test_written_files_and_user_files_can_be_renamed(project):
    Path("draft").write_text("done")
    os.replace("draft", "final")
    Path("log.txt").rename("old.txt")
    shutil.move("data", "moved")

    assert not Path("draft").exists()
    assert Path("final").read_text() == "done"
    assert not Path("log.txt").exists()
    assert Path("old.txt").read_text() == "first\n"
    assert Path("moved/kept.txt").read_text() == "the user's"
    assert not Path("data").exists()


def test_files_can_be_copied_and_linked(project):
    shutil.copy("log.txt", "copy.txt")
    os.symlink("copy.txt", "last.txt")
    os.link("log.txt", "hard.txt")
    Path("hard.txt").write_text("changed")

    assert Path("last.txt").read_text() == "first\n"
    assert os.readlink("last.txt") == "copy.txt"
    assert Path("log.txt").read_text() == "first\n"


def test_a_new_folder_can_be_the_working_folder(project):
    os.makedirs("outputs/today")
    os.chdir("outputs/today")
    Path("config.yaml").write_text("x")

    assert os.getcwd() == str(project / "outputs" / "today")
    assert Path.cwd() == project / "outputs" / "today"
    assert Path("../../data/kept.txt").read_text() == "the user's"
    assert (project / "outputs" / "today" / "config.yaml").exists()


def test_a_folder_reached_through_a_link_is_the_same_folder(project, tmp_path):
    (tmp_path / "left").mkdir()
    os.symlink(project / "data", tmp_path / "left" / "link")
    (tmp_path / "left" / "link" / "new.txt").write_text("through the link")

    assert Path("data/new.txt").read_text() == "through the link"


def test_excluded_folders_are_written_in_place(project, tmp_path):
    (tmp_path / "left").mkdir()
    place = tmp_path / "left" / "cache.bin"
    place.write_bytes(b"real")

    assert pathlib.Path(place).stat().st_size == 4
    assert not (tmp_path / "scratch").exists()


def test_torch_save_and_load_work(project):
    torch.save({"w": torch.ones(2)}, "best.pt")
    torch.save(torch.zeros(1), f=project / "other.pt")

    assert torch.load("best.pt")["w"].tolist() == [1.0, 1.0]
    assert torch.load("best.pt", mmap=True)["w"].tolist() == [1.0, 1.0]
    assert torch.load(f="other.pt").tolist() == [0.0]


def test_numpy_safetensors_h5py_and_sqlite_work(project):
    import sqlite3

    import h5py
    import numpy
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    numpy.save("a.npy", numpy.arange(3))
    numpy.arange(3).tofile("raw.bin")
    save_file({"w": torch.ones(1)}, "w.safetensors")
    with h5py.File("a.h5", "w") as file:
        file["x"] = [1, 2]
    with sqlite3.connect("a.db") as base:
        base.execute("create table t (x)")

    assert numpy.load("a.npy").tolist() == [0, 1, 2]
    assert numpy.fromfile("raw.bin", dtype=int).tolist() == [0, 1, 2]
    assert load_file("w.safetensors")["w"].item() == 1.0
    with safe_open("w.safetensors", "pt") as file:
        assert list(file.keys()) == ["w"]
    with h5py.File("a.h5") as file:
        assert file["x"][1] == 2
    assert sqlite3.connect("a.db").execute("select count(*) from t").fetchone() == (0,)


def test_byte_paths_and_descriptors_work(project):
    descriptor = os.open(b"raw", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"x")
    os.close(descriptor)

    with open(os.open("raw", os.O_RDONLY), "rb") as file:
        assert file.read() == b"x"
    assert b"raw" in os.listdir(b".")
    assert os.stat("raw").st_size == 1


def test_bytecode_of_hotlap_is_saved_where_python_looks_for_it(tmp_path):
    """A draft that was left in a package folder would count as a file that the program wrote, in every trial."""
    package = tmp_path / "package"
    package.mkdir()
    ledger = Ledger()
    divert(Shadow(tmp_path / "scratch", [tmp_path], []), ledger)
    try:
        _Loader("module", str(package / "module.py")).set_data(str(package / "module.pyc"), b"compiled")
    finally:
        ledger.close()
    assert _contents(package) == {"module.pyc": b"compiled"}


def test_every_patched_function_is_restored(tmp_path):
    ledger = Ledger()
    before = (open, os.open, os.stat, shutil.rmtree, torch.save)
    divert(Shadow(tmp_path / "scratch", [tmp_path], []), ledger)
    during = (open, os.open, os.stat, shutil.rmtree, torch.save)
    ledger.close()

    assert not any(old is new for old, new in zip(before, during, strict=True))
    assert (open, os.open, os.stat, shutil.rmtree, torch.save) == before


def test_started_programs_are_named_unless_they_cannot_write(tmp_path):
    import subprocess

    ledger = Ledger()
    Foreign(tmp_path, ledger).install()
    try:
        subprocess.run(["true"], check=True)
        subprocess.run("LEVEL=1 /bin/sleep 0 && true", shell=True, check=True)
        subprocess.run([sys.executable, "-c", ""], check=True)
        os.system("touch " + str(tmp_path / "one") + "; true")
        os.system("touch " + str(tmp_path / "two"))
    finally:
        ledger.close()

    assert (tmp_path / "programs.txt").read_text().split() == ["sleep", "touch"]
    assert "starts other programs (sleep, touch)" in foreign(tmp_path)
    assert foreign(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["/usr/bin/rsync", "-a"], "rsync"),
        ("cp a b", "cp"),
        (["bash", "-c", "tar cf x y"], "tar"),
        (b"cp", ""),
        ("cp 'unclosed", ""),
        ([], ""),
    ],
)
def test_the_program_that_a_command_starts_is_found(command, name):
    assert first_word(command) == name
