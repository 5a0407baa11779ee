"""Files written past the diversion: which are restored, which are left alone, and what is reported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotlap.errors import BaselineUnusable
from hotlap.trial import keeper as keeping
from hotlap.trial.keeper import Keeper, folders_at_stake
from hotlap.trial.local import LocalRunner
from hotlap.trial.runner import Spec

OLD, NEW = '{"vocabulary": "old"}', '{"vocabulary": "new"}'


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(OLD)
    (folder / "tokenizer.json").chmod(0o640)
    (folder / "train.py").write_text("pass")
    return folder


@pytest.fixture
def keeper(work, tmp_path):
    messages = []
    made = Keeper(tmp_path / "kept", [work], messages.append)
    made.said = messages
    return made


def process(keeper, tmp_path, during, diverted: Path | None = None):
    """Simulate a process of a trial that calls `during` and has a diverted file in the folder `diverted`."""
    scratch = tmp_path / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    if diverted is not None:
        place = scratch / str(diverted).lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text("{}")
    keeper.process_begins()
    during()
    keeper.process_ended(tmp_path / "process", scratch)


def test_a_file_overwritten_beside_diverted_files_is_restored(keeper, work, tmp_path):
    file = work / "tokenizer.json"
    before = file.stat()
    process(keeper, tmp_path, lambda: file.write_text(NEW), diverted=work)

    assert file.read_text() == OLD
    assert (file.stat().st_mode, file.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    (line,) = keeper.said
    assert "tokenizer.json was overwritten in a trial" in line
    assert line.endswith("it was restored")
    (aside,) = (tmp_path / "kept" / "put-aside").iterdir()
    assert aside.read_text() == NEW, "nothing is lost either way"
    process(keeper, tmp_path, lambda: file.write_text(NEW), diverted=work)
    assert (file.read_text(), len(keeper.said)) == (OLD, 1)


def test_a_replaced_or_removed_file_is_restored(keeper, work, tmp_path):
    file, other = work / "tokenizer.json", work / "draft"

    def replaced():
        other.write_text(NEW)
        other.replace(file)

    process(keeper, tmp_path, replaced, diverted=work)
    assert file.read_text() == OLD
    process(keeper, tmp_path, file.unlink)
    assert file.read_text() == OLD
    assert sorted(path.name for path in work.iterdir()) == ["tokenizer.json", "train.py"]


def test_a_file_that_a_trial_had_open_for_writing_is_restored(keeper, work, tmp_path):
    hold = "import sys; file = open(sys.argv[1], 'w'); file.write('x'); file.flush(); print(1, flush=True); input()"

    def during():
        child = subprocess.Popen(
            [sys.executable, "-c", hold, str(work / "train.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        child.stdout.readline()
        keeper.look_at([child.pid])
        child.communicate(b"\n")

    process(keeper, tmp_path, during)
    assert (work / "train.py").read_text() == "pass"


def test_a_file_that_two_processes_write_alike_is_restored(keeper, work, tmp_path):
    file = work / "tokenizer.json"
    process(keeper, tmp_path, lambda: file.write_text(NEW))
    assert file.read_text() == NEW
    assert "it is not known by what; hotlap does not touch it" in keeper.said[0]
    process(keeper, tmp_path, lambda: file.write_text(NEW))
    assert file.read_text() == OLD
    assert keeper.lines == [keeper.said[1]]
    assert keeper.said[1].endswith("it was restored")


def test_an_edit_by_the_user_is_left_alone(keeper, work, tmp_path):
    source = work / "train.py"
    for text in ("edited", "edited again", "edited again"):
        process(keeper, tmp_path, lambda text=text: source.write_text(text), diverted=work)
    assert source.read_text() == "edited again"
    assert len(keeper.said) == 1


def test_a_file_that_changes_between_trials_is_left_alone(keeper, work, tmp_path):
    log = work / "job.log"
    process(keeper, tmp_path, lambda: None)
    log.write_text("1")
    for text in ("2", "3", "3"):
        process(keeper, tmp_path, lambda text=text: log.write_text(text), diverted=work)
    assert log.read_text() == "3"
    assert keeper.said == []


def test_a_file_that_another_process_has_open_is_left_alone(keeper, work, tmp_path):
    with (work / "tokenizer.json").open("w") as file:
        process(keeper, tmp_path, lambda: (file.write(NEW), file.flush()), diverted=work)
        assert (work / "tokenizer.json").read_text() == NEW
    assert keeper.said == [], "as of a log that the tune itself is written to"


def test_a_file_created_in_a_trial_is_moved_aside(keeper, work, tmp_path):
    process(keeper, tmp_path, lambda: (work / "model.bin").write_text(NEW), diverted=work)
    assert not (work / "model.bin").exists()
    assert [path.read_text() for path in (tmp_path / "kept" / "put-aside").iterdir()] == [NEW]
    process(keeper, tmp_path, lambda: (work / "unknown.bin").write_text(NEW), diverted=tmp_path)
    assert (work / "unknown.bin").exists(), "whose that is cannot be told"


def test_overwriting_a_file_too_large_to_copy_ends_the_tune(work, tmp_path, constants):
    constants(keeping, LARGEST=4)
    keeper = Keeper(tmp_path / "kept", [work], lambda line: None)
    with pytest.raises(
        BaselineUnusable, match=r"tokenizer\.json, bypassing hotlap .*cannot be restored; tune a command"
    ):
        process(keeper, tmp_path, lambda: (work / "tokenizer.json").write_text(NEW), diverted=work)


def test_a_folder_the_program_wrote_to_or_read_from_is_protected_from_then_on(keeper, tmp_path):
    outside, read = tmp_path / "models", tmp_path / "tokenizers"
    for folder in (outside, read):
        folder.mkdir()
        (folder / "tokenizer.json").write_text(OLD)
    (tmp_path / "process").mkdir()
    (tmp_path / "process" / "places.txt").write_text(f"{read}\n")
    process(keeper, tmp_path, lambda: None, diverted=outside)
    process(keeper, tmp_path, lambda: (outside / "tokenizer.json").write_text(NEW), diverted=outside)
    for _ in range(2):
        process(keeper, tmp_path, lambda: (read / "tokenizer.json").write_text(NEW))
    assert [(folder / "tokenizer.json").read_text() for folder in (outside, read)] == [OLD, OLD]


def test_the_target_of_a_link_is_protected_like_the_files_beside_it(work, tmp_path):
    elsewhere = tmp_path / "shared.json"
    elsewhere.write_text(OLD)
    (work / "link.json").symlink_to(elsewhere)
    keeper = Keeper(tmp_path / "kept", [work], lambda line: None)
    for _ in range(2):
        process(keeper, tmp_path, lambda: (work / "link.json").write_text(NEW))
    assert elsewhere.read_text() == OLD
    assert (work / "link.json").is_symlink()


def test_copies_are_removed_at_the_end(keeper, tmp_path):
    assert (tmp_path / "kept" / "copies").exists()
    keeper.close()
    assert not (tmp_path / "kept").exists()


def test_protects_the_working_folder_and_the_folders_named_in_the_command(work, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    found = folders_at_stake(("python", "work/train.py", "--out=out", "--epochs", "3"))
    assert [folder.resolve() for folder in found] == [tmp_path, work, tmp_path / "out"]


COMPILED = """
import ctypes
open("config.json", "w").write("{}")  # diverted
c = ctypes.CDLL(None)
c.fopen.restype = ctypes.c_void_p
c.fputs.argtypes, c.fclose.argtypes = [ctypes.c_char_p, ctypes.c_void_p], [ctypes.c_void_p]
for name in (b"tokenizer.json", b"made.bin"):
    file = c.fopen(name, b"w")
    c.fputs(b"overwritten", file)
    c.fclose(file)
"""


def test_files_written_by_compiled_code_are_restored_after_a_real_process(keeper, work, tmp_path, monkeypatch):
    monkeypatch.chdir(work)
    (work / "train.py").write_text(COMPILED)
    before = {path.name: path.read_text() for path in work.iterdir()}
    runner = LocalRunner((sys.executable, "train.py"), tmp_path / "trials", 1.0, keeper=keeper)
    runner.run(Spec(number=0, arm="base", choices=(), seed_shift=0, steps=9, least=5, seconds=600.0))

    assert {path.name: path.read_text() for path in work.iterdir()} == before
    assert len(keeper.said) == 2


def test_folders_of_hotlap_are_excluded_even_if_a_process_reads_there(work, tmp_path):
    ours, messages = tmp_path / "runs", []
    inside = ours / "one" / "trials" / "process-0004"
    inside.mkdir(parents=True)
    keeper = Keeper(tmp_path / "kept", [work], messages.append, [ours])
    keeper.add([inside])
    process(keeper, tmp_path, lambda: (inside / "told.json").write_text("{}"), diverted=work)

    assert (inside / "told.json").exists()
    assert messages == []
