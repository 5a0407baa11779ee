"""A saved plan fits only the command, source, user, machine and folder that it was proven for."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

from hotlap.plan import saved_plan
from hotlap.plan.saved_plan import difference, origin, place, source_hash
from hotlap.records.plan import Circumstances, Plan


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "train.py").write_text("import package\n")
    (tmp_path / "package" / "model.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMAND = (sys.executable, "train.py", "--lr", "0.1")


def plan_for(command) -> Plan:
    proven = Circumstances(command=tuple(command), source=source_hash(command), torch="2.13", hardware="2 cores")
    return Plan(schema=1, title="tune", choices=(), proven=proven, origin=origin())


def test_the_plan_fits_the_same_command_and_source(project):
    assert difference(plan_for(COMMAND), COMMAND) is None


def test_a_plan_that_was_never_proven_fits_every_command(project):
    assert difference(Plan(schema=1, title="safe", choices=()), COMMAND) is None


def test_different_arguments_are_a_different_command(project):
    differs = difference(plan_for(COMMAND), (*COMMAND[:-1], "0.2"))
    assert differs == f"another command ({' '.join(COMMAND)})"


@pytest.mark.parametrize("name", ["train.py", "package/model.py", "package/new.py"])
def test_a_changed_or_new_file_beside_the_script_is_different_source(project, name):
    plan = plan_for(COMMAND)
    (project / name).write_text("x = 2\n")
    assert difference(plan, COMMAND) == "other source code"


@pytest.mark.parametrize("name", [".venv/lib/module.py", "__pycache__/train.py", "notes.txt", "build/lib/train.py"])
def test_files_that_are_not_source_code_do_not_count(project, name):
    plan = plan_for(COMMAND)
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text("x = 2\n")
    assert difference(plan, COMMAND) is None


def test_a_module_is_looked_for_below_the_current_folder(project):
    command = (sys.executable, "-m", "package.model")
    plan = plan_for(command)
    (project / "package" / "model.py").write_text("x = 3\n")
    assert difference(plan, command) == "other source code"


def test_a_moved_file_is_different_source(project):
    plan = plan_for(COMMAND)
    (project / "other").mkdir()
    (project / "package" / "model.py").rename(project / "other" / "model.py")
    assert difference(plan, COMMAND) == "other source code"


def test_a_dangling_link_is_not_source(project):
    (project / "gone.py").symlink_to(project / "missing.py")
    assert difference(plan_for(COMMAND), COMMAND) is None


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("uid", 4321, "another user ("),
        ("machine", "0123", "another machine"),
        ("directory", "/elsewhere", "another folder (/elsewhere)"),
        ("hotlap", "0.0.1", "another hotlap (0.0.1)"),
    ],
)
def test_a_plan_of_another_user_machine_folder_or_version_does_not_fit(project, field, value, says):
    plan = plan_for(COMMAND)
    differs = difference(replace(plan, origin=replace(plan.origin, **{field: value})), COMMAND)
    assert differs.startswith(says)


def test_the_machine_is_known_by_its_id_or_else_by_its_name(tmp_path, constants):
    constants(saved_plan, MACHINE_ID=tmp_path / "id")
    by_name = saved_plan.machine()
    (tmp_path / "id").write_text("abc\n")
    by_id = saved_plan.machine()
    assert saved_plan.machine() == by_id != by_name
    assert "abc" not in by_id


def test_does_not_wait_for_a_pipe_named_like_a_source_file(project):
    before = source_hash(COMMAND)
    os.mkfifo(project / "pipe.py")
    (project / "device.py").symlink_to("/dev/zero")
    assert source_hash(COMMAND) == before


def test_the_same_command_in_another_folder_is_a_different_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = place(tmp_path, COMMAND)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert place(tmp_path, COMMAND) != here


def test_each_command_has_a_plan_file_of_its_own(tmp_path):
    assert place(tmp_path, ("python", "a b")) != place(tmp_path, ("python", "a", "b"))
    assert place(tmp_path, COMMAND) == place(tmp_path, COMMAND)
    assert place(tmp_path, COMMAND).parent == tmp_path / "plans"
