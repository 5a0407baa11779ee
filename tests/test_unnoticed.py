"""A program sees the same process with and without hotlap in front."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness import HOTLAP, PROGRAMS, Ran, alone, bare, environment, profile, python, warmed_if_possible
from warm import warmed

DATA = ("resident-data", "whole-batch-fetch", "sample-cache", "loader-persistent")  # other tests cover these
WITHOUT_DATA = [word for name in DATA for word in ("--without", name)]
VERBS = {
    "run": ["run", "--plan", "safe", *WITHOUT_DATA],
    "profile": ["profile", "--full", "--no-ceiling"],
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("program", ["looks_around.py", "profiles_itself.py"])
def test_hotlap_is_invisible_to_the_program(verb, program, tmp_path, tmp_path_factory):
    """The programs print tracebacks, warnings, log records, threads, handlers, modules, processes and profiles."""
    expected = alone(tmp_path_factory, python(program))
    as_typed = warmed_if_possible(python(program))
    command = [*HOTLAP, *VERBS[verb], "--quiet", "--run-dir", str(tmp_path / "kept"), *as_typed]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    assert expected.code == done.returncode == 0, done.stderr
    assert done.stdout == expected.stdout


WAYS = {
    "run": ["run"],
    "run at once": ["run", "--at-once"],
    "rounding": ["run", "--at-once", "--risk", "rounding"],
    "profile": ["profile", "--full", "--no-ceiling"],
    "enable": [],
}


LEFT = ("losses.txt", "rows.txt")


def left_behind(ran: Ran, folder: Path) -> tuple[list[str], list[str]]:
    """Return the sorted lines that a program printed and the contents of its files."""
    assert ran.code == 0, ran.stderr
    return sorted(ran.stdout.split("\n")), [(folder / name).read_text() for name in LEFT]


@pytest.fixture(scope="module")
def left_without_hotlap(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    plain = alone(tmp_path_factory, python("leaves_open.py"))
    return left_behind(plain, plain.folder.parent)


RARELY = ("run at once", "enable")  # the other ways meet what they meet


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.thorough) if way in RARELY else way for way in WAYS]
)
def test_what_a_program_leaves_open_is_flushed_and_freed_at_exit(way, tmp_path, left_without_hotlap):
    printed, (losses, _) = left_without_hotlap
    assert len(losses.splitlines()) == 320
    assert len([line for line in printed if "is gone" in line]) == 3

    program = python("leaves_open.py")
    hotlap = [*HOTLAP, *WAYS[way], "--quiet", "--run-dir", str(tmp_path / "kept")] if WAYS[way] else []
    ran = bare([*hotlap, *program, *([] if WAYS[way] else ["enable"])], tmp_path)
    assert left_behind(ran, tmp_path) == left_without_hotlap


REMOVES_ITS_FOLDER = """
import os, tempfile
import torch
from common import Net

gone = tempfile.mkdtemp()
os.chdir(gone)
os.rmdir(gone)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(30):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


def test_a_program_that_removes_its_current_folder_is_profiled(tmp_path):
    (tmp_path / "train.py").write_text(REMOVES_ITS_FOLDER)
    ran = profile(warmed([sys.executable, str(tmp_path / "train.py")]), tmp_path, "--full", PYTHONPATH=str(PROGRAMS))
    assert ran.code == 0, ran.stderr
    assert ran.observation["steps"] > 0
