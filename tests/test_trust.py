"""Hostile files cost hotlap run one line, and the training starts; hostile names do not reach a terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import HOTLAP, PROGRAMS, Ran, environment
from observations import observation
from warm import warmed

import hotlap.cli
from hotlap import store
from hotlap.diagnose import diagnose
from hotlap.plan import saved_plan
from hotlap.records.visible import everywhere, visible, visible_lines

TRAINED = [sys.executable, "-c", "print('trained')"]
EVIL = "E\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e\n[red]x"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def run(command: list[str], cwd: Path, *options: str, umask: int = -1, **more: str) -> Ran:
    """Run without --run-dir, with a state folder of its own."""
    env = environment(**{"XDG_STATE_HOME": str(cwd.parent / "state"), "TMPDIR": str(cwd.parent / "tmp"), **more})
    done = subprocess.run(
        [*HOTLAP, "run", *options, *command], cwd=cwd, env=env, capture_output=True, text=True, timeout=600, umask=umask
    )
    return Ran(done.returncode, done.stdout, done.stderr, cwd)


@pytest.fixture
def project(tmp_path) -> Path:
    for name in ("project", "state", "tmp"):
        (tmp_path / name).mkdir()
    return tmp_path / "project"


@pytest.fixture
def root(project) -> Path:
    return project.parent / "state" / "hotlap"


def hotlap_lines(ran: Ran) -> list[str]:
    return [line for line in ran.stderr.splitlines() if "no training step was seen" not in line]


# Where a run is saved


def test_the_run_is_saved_outside_the_working_directory_and_one_line_says_where(project, root):
    ran = run(TRAINED, project, umask=0)

    assert (ran.code, ran.stdout) == (0, "trained\n")
    assert list(project.iterdir()) == []
    (home,) = root.iterdir()
    assert hotlap_lines(ran) == [f"hotlap: saving this run in {home}"]
    assert {path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_file()} == {0o600}


@pytest.mark.parametrize(
    ("variable", "kind"),
    [(variable, kind) for variable in ("XDG_STATE_HOME", "HOTLAP_DIR") for kind in ("file", "link")]
    + [("XDG_STATE_HOME", kind) for kind in ("pipe", "dangling link", "open to all")],
)
def test_an_unusable_state_folder_costs_one_line(kind, variable, project, root):
    place = root if variable == "XDG_STATE_HOME" else project.parent / "named"
    if kind == "file":
        place.write_text("a file")
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "open to all":
        place.mkdir()
        place.chmod(0o777)
    else:
        place.symlink_to(project.parent / ("tmp" if kind == "link" else "nowhere"))
    more = {} if variable == "XDG_STATE_HOME" else {"HOTLAP_DIR": str(place)}
    ran = run(TRAINED, project, **more)

    assert (ran.code, ran.stdout) == (0, "trained\n")
    (line,) = hotlap_lines(ran)
    assert str(place) in line
    assert f"; saving this run in {project.parent / 'tmp' / f'hotlap-{os.getuid()}'}/project-" in line


def test_the_command_runs_unchanged_where_nothing_can_be_written(project, root, monkeypatch, answering, capfd):
    """This happens in a container with a read-only file system."""
    why = "cannot write / (Read-only file system); choose another place: --run-dir DIR"
    answering(store, prepare=store.RunFolderUnwritable(why))
    started = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words) or sys.exit(7))
    monkeypatch.setattr(sys, "argv", ["hotlap", "run", *TRAINED])
    with pytest.raises(SystemExit) as ended:
        hotlap.cli.main()
    assert ended.value.code == 7
    assert started == [tuple(TRAINED)]
    line = "hotlap: cannot write / (Read-only file system); nothing is applied, and the command runs unchanged\n"
    assert capfd.readouterr().err == line


def test_profile_and_tune_refuse_to_run_without_a_writable_folder(project, root):
    root.write_text("a file")
    env = environment(XDG_STATE_HOME=str(root.parent))
    for verb in ("profile", "tune"):
        done = subprocess.run([*HOTLAP, verb, *TRAINED], cwd=project, env=env, capture_output=True, text=True)
        assert done.returncode == 73, done.stderr
        assert done.stderr == f"hotlap: {root} is not a folder; choose another place: --run-dir DIR\n"
        assert done.stdout == ""


# Plans from a repository

PLAN = {"schema": 1, "title": "mine", "proven": None, "choices": [{"name": "autocast", "value": None, "asked": True}]}


def test_a_plan_inside_the_repository_is_ignored(project):
    folder = project / ".hotlap"
    place = saved_plan.place(folder, TRAINED)
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(PLAN))
    (line,) = hotlap_lines(run(TRAINED, project))
    assert line.startswith("hotlap: saving this run in")


@pytest.mark.parametrize("way", [("--run-dir", ".hotlap"), ()])
def test_an_unsigned_plan_in_a_run_folder_inside_the_repository_is_not_applied(way, project, monkeypatch):
    monkeypatch.chdir(project)
    place = saved_plan.place(project / ".hotlap", TRAINED)
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(PLAN))
    (line,) = hotlap_lines(run(TRAINED, project, *way, **({} if way else {"HOTLAP_DIR": ".hotlap"})))
    assert "was not proven by your own hotlap tune; running with the plan 'safe' instead" in line


@pytest.mark.parametrize(("risk", "left_out"), [((), 2), (("--risk", "rounding"), 2), (("--risk", "numeric"), 1)])
def test_reports_each_entry_that_a_plan_file_may_not_turn_on(risk, left_out, project):
    choices = [{"name": name, "value": None, "asked": True} for name in ("autocast", "resident-data", "compile")]
    (project / "plan.json").write_text(json.dumps({**PLAN, "choices": choices}))
    ran = run(TRAINED, project, "--plan", "plan.json", *risk)

    lines = [line for line in hotlap_lines(ran) if "left out" in line]
    assert len(lines) == left_out
    assert any(line.endswith("a plan file cannot turn it on; request it: --with compile") for line in lines)
    (home,) = (project.parent / "state" / "hotlap").glob("project-*")
    (plan,) = home.glob("runs/*/plan.json")
    applied = json.loads(plan.read_text())["choices"]
    assert {choice["name"] for choice in applied} == {"resident-data", *["autocast"] * (left_out == 1)}
    assert not any(choice["asked"] for choice in applied)


@pytest.mark.parametrize(
    ("options", "has", "has_not"),
    [
        ((), "resident-data", "fused-optimizer"),
        (("--risk", "rounding"), "fused-optimizer", "tf32"),
        (("--risk", "numeric", "--without", "gc-pauses"), "tf32", "gc-pauses"),
    ],
)
def test_the_risk_decides_what_is_applied(options, has, has_not, project, root):
    run(TRAINED, project, *options)
    (plan,) = root.glob("*/runs/*/plan.json")
    names = [choice["name"] for choice in json.loads(plan.read_text())["choices"]]
    assert has in names
    assert has_not not in names


# Names are spelled out before they reach a terminal


def test_control_characters_are_spelled_out():
    assert visible("plain, 3.1× – ok") == "plain, 3.1× – ok"
    assert visible("a\x1b[31m\n\x9b\u202e\ud800") == "a\\x1b[31m\\n\\x9b\\u202e\\ud800"
    assert visible_lines("a\tb\n\x1b") == "a\tb\n\\x1b"
    assert everywhere({"a\r": ["b\x07", ("c\x00", 1)]}) == {"a\\r": ["b\\x07", ("c\\x00", 1)]}


def harmless(text: str) -> bool:
    """The text contains the name but nothing that a terminal would obey."""
    return OBEYED.search(text) is None and "\\x1b" in text


def test_hostile_names_of_a_class_a_script_and_a_choice_do_not_reach_the_terminal(project):
    script = project / "t\x1b[2J\nx.py"
    text = (PROGRAMS / "plain_loop.py").read_text()
    script.write_text(text.replace("step = 0\n", f"step = 0\nPoints.__name__ = Points.__qualname__ = {EVIL!r}\n"))
    (project / "plan.json").write_text(json.dumps({**PLAN, "choices": [{"name": EVIL, "value": None}]}))
    refused = run([sys.executable, str(script)], project, "--plan", "plan.json")
    assert refused.code == 79
    assert refused.stderr.count("\n") == 1
    assert harmless(refused.stderr)
    done = run(warmed([sys.executable, str(script)]), project, "--with", "resident-data", PYTHONPATH=str(PROGRAMS))
    assert done.code == 0, done.stderr
    assert harmless(done.stderr.replace("\n", " "))


@pytest.mark.parametrize("form", [(), ("--markdown",), ("--json",), ("--html", "--output", "-")])
@pytest.mark.parametrize("verb", ["show", "report"])
def test_hostile_text_in_a_record_does_not_reach_the_terminal(verb, form, project, monkeypatch, command_line):
    if verb == "show" and "--html" in form:
        form = ()
    monkeypatch.chdir(project)
    monkeypatch.setenv("XDG_STATE_HOME", str(project.parent / "state"))
    seen = observation()
    run = store.create(("python", "train.py"))
    text = json.loads(run.save("observation", seen).read_text())
    run.save("diagnosis", diagnose(seen))
    evil = _edited(text)
    (run.folder / "observation.json").write_text(json.dumps(evil, ensure_ascii=False))
    code, printed, complained = command_line(verb, *form)
    assert (code, complained) == (0, "")
    assert OBEYED.search(printed) is None
    assert "owned" in printed


def _edited(record):
    """The record with hostile free text; words that the program interprets stay."""
    evil = dict(record)
    evil["command"] = ["python", EVIL]
    evil["directory"] = EVIL
    evil["machine"] = {**record["machine"], "cpu": EVIL, "versions": {EVIL: EVIL}}
    evil["loaders"] = [{**loader, "dataset": EVIL} if "dataset" in loader else loader for loader in record["loaders"]]
    return evil
