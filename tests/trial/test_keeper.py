"""Files written past our diversion: what is put back, what is left, and what is said."""

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
    said = []
    made = Keeper(tmp_path / "kept", [work], said.append)
    made.said = said
    return made


def process(keeper, tmp_path, during, diverted: Path | None = None):
    """A process of a trial that does this, and wrote a file into this folder that was diverted."""
    scratch = tmp_path / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    if diverted is not None:
        place = scratch / str(diverted).lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text("{}")
    keeper.process_begins()
    during()
    keeper.process_ended(tmp_path / "process", scratch)


def test_what_is_written_beside_diverted_files_is_put_back_as_it_was(keeper, work, tmp_path):
    file = work / "tokenizer.json"
    before = file.stat()
    process(keeper, tmp_path, lambda: file.write_text(NEW), diverted=work)

    assert file.read_text() == OLD
    assert (file.stat().st_mode, file.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    (line,) = keeper.said
    assert "tokenizer.json was overwritten in a trial" in line
    assert line.endswith("it is put back")
    (aside,) = (tmp_path / "kept" / "put-aside").iterdir()
    assert aside.read_text() == NEW, "nothing is lost either way"
    process(keeper, tmp_path, lambda: file.write_text(NEW), diverted=work)
    assert (file.read_text(), len(keeper.said)) == (OLD, 1)


def test_a_file_that_was_replaced_or_removed_is_put_back(keeper, work, tmp_path):
    file, other = work / "tokenizer.json", work / "draft"

    def replaced():
        other.write_text(NEW)
        other.replace(file)

    process(keeper, tmp_path, replaced, diverted=work)
    assert file.read_text() == OLD
    process(keeper, tmp_path, file.unlink)
    assert file.read_text() == OLD
    assert sorted(one.name for one in work.iterdir()) == ["tokenizer.json", "train.py"]


def test_who_had_it_open_for_writing_wrote_it(keeper, work, tmp_path):
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


def test_what_two_processes_make_alike_is_theirs(keeper, work, tmp_path):
    file = work / "tokenizer.json"
    process(keeper, tmp_path, lambda: file.write_text(NEW))
    assert file.read_text() == NEW
    assert "by whom is not known; it is left as it is" in keeper.said[0]
    process(keeper, tmp_path, lambda: file.write_text(NEW))
    assert file.read_text() == OLD
    assert keeper.lines == [keeper.said[1]]
    assert keeper.said[1].endswith("it is put back")


def test_what_the_user_edits_meanwhile_is_left(keeper, work, tmp_path):
    source = work / "train.py"
    for text in ("edited", "edited again", "edited again"):
        process(keeper, tmp_path, lambda text=text: source.write_text(text), diverted=work)
    assert source.read_text() == "edited again"
    assert len(keeper.said) == 1


def test_what_changes_while_no_trial_runs_is_anothers(keeper, work, tmp_path):
    log = work / "job.log"
    process(keeper, tmp_path, lambda: None)
    log.write_text("1")
    for text in ("2", "3", "3"):
        process(keeper, tmp_path, lambda text=text: log.write_text(text), diverted=work)
    assert log.read_text() == "3"
    assert keeper.said == []


def test_what_another_process_has_open_is_its_own(keeper, work, tmp_path):
    with (work / "tokenizer.json").open("w") as file:
        process(keeper, tmp_path, lambda: (file.write(NEW), file.flush()), diverted=work)
        assert (work / "tokenizer.json").read_text() == NEW
    assert keeper.said == [], "as of a log that the tune itself is written to"


def test_a_file_made_in_a_trial_is_taken_away_but_not_lost(keeper, work, tmp_path):
    process(keeper, tmp_path, lambda: (work / "model.bin").write_text(NEW), diverted=work)
    assert not (work / "model.bin").exists()
    assert [one.read_text() for one in (tmp_path / "kept" / "put-aside").iterdir()] == [NEW]
    process(keeper, tmp_path, lambda: (work / "unknown.bin").write_text(NEW), diverted=tmp_path)
    assert (work / "unknown.bin").exists(), "whose that is cannot be told"


def test_a_file_too_large_to_be_copied_ends_the_tune_once_it_is_overwritten(work, tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "LARGEST", 4)
    keeper = Keeper(tmp_path / "kept", [work], lambda line: None)
    with pytest.raises(BaselineUnusable, match=r"tokenizer\.json past hotlap .*cannot be put back; leave that out"):
        process(keeper, tmp_path, lambda: (work / "tokenizer.json").write_text(NEW), diverted=work)


def test_a_folder_the_program_wrote_to_or_read_from_is_kept_from_then_on(keeper, tmp_path):
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


def test_what_a_link_leads_to_is_kept_like_the_files_beside_it(work, tmp_path):
    elsewhere = tmp_path / "shared.json"
    elsewhere.write_text(OLD)
    (work / "link.json").symlink_to(elsewhere)
    keeper = Keeper(tmp_path / "kept", [work], lambda line: None)
    for _ in range(2):
        process(keeper, tmp_path, lambda: (work / "link.json").write_text(NEW))
    assert elsewhere.read_text() == OLD
    assert (work / "link.json").is_symlink()


def test_copies_are_gone_at_the_end(keeper, tmp_path):
    assert (tmp_path / "kept" / "copies").exists()
    keeper.close()
    assert not (tmp_path / "kept").exists()


def test_folders_at_stake_are_where_it_runs_and_what_its_words_name(work, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    found = folders_at_stake(("python", "work/train.py", "--out=out", "--epochs", "3"))
    assert [one.resolve() for one in found] == [tmp_path, work, tmp_path / "out"]


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


def test_compiled_code_of_a_real_process_leaves_every_file_as_it_was(keeper, work, tmp_path, monkeypatch):
    monkeypatch.chdir(work)
    (work / "train.py").write_text(COMPILED)
    before = {one.name: one.read_text() for one in work.iterdir()}
    runner = LocalRunner((sys.executable, "train.py"), tmp_path / "trials", 1.0, keeper=keeper)
    runner.run(Spec(number=0, arm="base", choices=(), seed_shift=0, steps=9, least=5, seconds=60.0))

    assert {one.name: one.read_text() for one in work.iterdir()} == before
    assert len(keeper.said) == 2


def test_folders_of_ours_are_left_out_though_a_process_reads_there(work, tmp_path):
    ours, said = tmp_path / "runs", []
    inside = ours / "one" / "trials" / "process-0004"
    inside.mkdir(parents=True)
    keeper = Keeper(tmp_path / "kept", [work], said.append, [ours])
    keeper.add([inside])
    process(keeper, tmp_path, lambda: (inside / "told.json").write_text("{}"), diverted=work)

    assert (inside / "told.json").exists()
    assert said == []
