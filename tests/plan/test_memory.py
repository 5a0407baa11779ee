"""Decisions of earlier runs are used only from a file that nobody else could have written."""

from __future__ import annotations

import os

import pytest

from hotlap.plan import memory
from hotlap.records import private
from hotlap.records.codec import SCHEMA, to_json
from hotlap.records.decisions import RememberedDecisions
from hotlap.version import __version__

SOURCE = "0123456789abcdef"


@pytest.fixture
def file(tmp_path):
    record = RememberedDecisions(
        schema=SCHEMA, source=SOURCE, hotlap=__version__, torch="2.13", hardware="2 cores", on=("resident-data",)
    )
    path = tmp_path / "plans" / "train.json"
    private.make_folder(path.parent)
    private.write_text(path, to_json(record))
    return path


def test_what_this_user_wrote_is_recalled(file):
    recalled = memory.recall(file, SOURCE)
    assert recalled is not None
    assert recalled.on == ("resident-data",)


def test_other_source_code_has_nothing_to_recall(file):
    assert memory.recall(file, "f" * 16) is None


def test_a_missing_file_has_nothing_to_recall(file):
    assert memory.recall(file.with_name("other.json"), SOURCE) is None


def test_a_damaged_file_has_nothing_to_recall(file):
    file.write_bytes(b'{"on": \xff')
    assert memory.recall(file, SOURCE) is None


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_is_refused(file, mode):
    file.chmod(mode)
    with pytest.raises(private.Unfit, match="others can write"):
        memory.recall(file, SOURCE)


def test_a_folder_that_others_can_write_is_refused(file):
    file.parent.chmod(0o777)
    with pytest.raises(private.Unfit, match=f"others can write {file.parent}"):
        memory.recall(file, SOURCE)


@pytest.mark.parametrize("replace", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_refused_without_waiting(file, replace):
    file.unlink()
    replace(file)
    with pytest.raises(private.Unfit):
        memory.recall(file, SOURCE)
