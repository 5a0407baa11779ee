"""What a program sees of its own process is the same with hotlap in front."""

from __future__ import annotations

import subprocess

import pytest
from harness import HOTLAP, alone, environment, python

DATA = ("resident-data", "whole-batch-fetch", "sample-cache", "loader-persistent")  # tested by themselves
WITHOUT_DATA = [word for name in DATA for word in ("--without", name)]
VERBS = {
    "run": ["run", "--plan", "safe", *WITHOUT_DATA],
    "profile": ["profile", "--full", "--no-ceiling"],
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("program", ["looks_around.py", "profiles_itself.py"])
def test_nothing_tells_that_hotlap_is_there(verb, program, tmp_path, tmp_path_factory):
    """Tracebacks, stacks, warnings, log records, threads, handlers, the collector, modules, processes, profiles."""
    expected = alone(tmp_path_factory, python(program))
    command = [*HOTLAP, *VERBS[verb], "--quiet", "--run-dir", str(tmp_path / "kept"), *python(program)]
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


@pytest.mark.parametrize("way", WAYS)
def test_what_a_program_leaves_open_is_written_and_gone_at_its_end(way, tmp_path):
    def left(command):
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return sorted(done.stdout.split("\n")), [(tmp_path / name).read_text() for name in ("losses.txt", "rows.txt")]

    program = python("leaves_open.py")
    plain = left(program)
    assert len(plain[1][0].splitlines()) == 320
    assert len([line for line in plain[0] if "is gone" in line]) == 3
    hotlap = [*HOTLAP, *WAYS[way], "--quiet", "--run-dir", str(tmp_path / "kept")] if WAYS[way] else []
    assert left([*hotlap, *program, *([] if WAYS[way] else ["enable"])]) == plain
