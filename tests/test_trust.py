"""hotlap run beside hostile files and folders: one line, and the training starts. And what names do to a terminal."""

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
    """Without --run-dir, in a home of its own."""
    env = environment(**{"XDG_STATE_HOME": str(cwd.parent / "state"), "TMPDIR": str(cwd.parent / "tmp"), **more})
    done = subprocess.run(
        [*HOTLAP, "run", *options, *command], cwd=cwd, env=env, capture_output=True, text=True, timeout=60, umask=umask
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


def said(ran: Ran) -> list[str]:
    return [line for line in ran.stderr.splitlines() if "no optimizer step was seen" not in line]


# Where a run is kept


def test_nothing_appears_in_the_working_directory_and_one_line_tells_where_it_is(project, root):
    ran = run(TRAINED, project, umask=0)

    assert (ran.code, ran.stdout) == (0, "trained\n")
    assert list(project.iterdir()) == []
    (home,) = root.iterdir()
    assert said(ran) == [f"hotlap: kept in {home}"]
    assert {path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in root.rglob("*") if path.is_file()} == {0o600}


@pytest.mark.parametrize(
    ("variable", "kind"),
    [(one, kind) for one in ("XDG_STATE_HOME", "HOTLAP_DIR") for kind in ("file", "link")]
    + [("XDG_STATE_HOME", kind) for kind in ("pipe", "dangling link", "open to all")],
)
def test_a_state_folder_that_cannot_be_used_costs_one_line(kind, variable, project, root):
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
    (line,) = said(ran)
    assert str(place) in line
    assert f"; this run is kept in {project.parent / 'tmp' / f'hotlap-{os.getuid()}'}/project-" in line


def test_where_nothing_at_all_can_be_written_the_command_runs_as_it_is(project, root, monkeypatch, capfd):
    """As in a container whose file system is read-only."""

    def read_only(*_):
        raise store.RunFolderUnwritable("cannot write / (Read-only file system); choose another place: --run-dir DIR")

    started = []
    monkeypatch.setattr(store, "prepare", read_only)
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words) or sys.exit(7))
    monkeypatch.setattr(sys, "argv", ["hotlap", "run", *TRAINED])
    with pytest.raises(SystemExit) as ended:
        hotlap.cli.main()
    assert ended.value.code == 7
    assert started == [tuple(TRAINED)]
    line = "hotlap: cannot write / (Read-only file system); the command runs as it is, and nothing is applied\n"
    assert capfd.readouterr().err == line


def test_a_command_whose_record_is_its_purpose_is_refused_in_one_line(project, root):
    root.write_text("a file")
    env = environment(XDG_STATE_HOME=str(root.parent))
    for verb in ("profile", "tune"):
        done = subprocess.run([*HOTLAP, verb, *TRAINED], cwd=project, env=env, capture_output=True, text=True)
        assert done.returncode == 73, done.stderr
        assert done.stderr == f"hotlap: {root} is not a folder; choose another place: --run-dir DIR\n"
        assert done.stdout == ""


# Plans that came with a repository

PLAN = {"schema": 1, "title": "mine", "proven": None, "choices": [{"name": "autocast", "value": None, "asked": True}]}


def test_a_plan_of_the_repository_is_not_looked_at(project):
    kept = project / ".hotlap"
    place = saved_plan.place(kept, TRAINED)
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(PLAN))
    (line,) = said(run(TRAINED, project))
    assert line.startswith("hotlap: kept in")


@pytest.mark.parametrize("way", [("--run-dir", ".hotlap"), ()])
def test_a_plan_of_the_repository_is_refused_where_the_user_keeps_runs_there(way, project, monkeypatch):
    monkeypatch.chdir(project)
    place = saved_plan.place(project / ".hotlap", TRAINED)
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(PLAN))
    (line,) = said(run(TRAINED, project, *way, **({} if way else {"HOTLAP_DIR": ".hotlap"})))
    assert "was not proven by a tune of yours; running with the plan 'safe' instead" in line


@pytest.mark.parametrize(("risk", "left_out"), [((), 2), (("--risk", "rounding"), 2), (("--risk", "numeric"), 1)])
def test_each_entry_that_a_named_file_may_not_turn_on_is_said_with_what_to_type(risk, left_out, project):
    choices = [{"name": name, "value": None, "asked": True} for name in ("autocast", "resident-data", "compile")]
    (project / "plan.json").write_text(json.dumps({**PLAN, "choices": choices}))
    ran = run(TRAINED, project, "--plan", "plan.json", *risk)

    lines = [line for line in said(ran) if "left out" in line]
    assert len(lines) == left_out
    assert any(line.endswith("no file can turn it on; ask for it: --with compile") for line in lines)
    (home,) = (project.parent / "state" / "hotlap").glob("project-*")
    (kept,) = home.glob("runs/*/plan.json")
    applied = json.loads(kept.read_text())["choices"]
    assert {one["name"] for one in applied} == {"resident-data", *["autocast"] * (left_out == 1)}
    assert not any(one["asked"] for one in applied)


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
    (kept,) = root.glob("*/runs/*/plan.json")
    names = [one["name"] for one in json.loads(kept.read_text())["choices"]]
    assert has in names
    assert has_not not in names


# Names reach a terminal spelled out


def test_what_a_terminal_would_obey_or_hide_is_spelled_out():
    assert visible("plain, 3.1× – ok") == "plain, 3.1× – ok"
    assert visible("a\x1b[31m\n\x9b\u202e\ud800") == "a\\x1b[31m\\n\\x9b\\u202e\\ud800"
    assert visible_lines("a\tb\n\x1b") == "a\tb\n\\x1b"
    assert everywhere({"a\r": ["b\x07", ("c\x00", 1)]}) == {"a\\r": ["b\\x07", ("c\\x00", 1)]}


def harmless(text: str) -> bool:
    """And the name is still there to be seen."""
    return OBEYED.search(text) is None and "\\x1b" in text


def test_a_class_a_script_and_a_choice_named_to_fool_a_terminal(project):
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
def test_a_record_edited_to_fool_a_terminal(verb, form, project, monkeypatch, capsys):
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
    monkeypatch.setattr(sys, "argv", ["hotlap", verb, *form])
    with pytest.raises(SystemExit) as ended:
        hotlap.cli.main()
    said = capsys.readouterr()
    assert (ended.value.code, said.err) == (0, "")
    assert OBEYED.search(said.out) is None
    assert "owned" in said.out


def _edited(record):
    """Free text is changed; words that have a meaning stay."""
    evil = dict(record)
    evil["command"] = ["python", EVIL]
    evil["directory"] = EVIL
    evil["machine"] = {**record["machine"], "cpu": EVIL, "versions": {EVIL: EVIL}}
    evil["loaders"] = [{**one, "dataset": EVIL} if "dataset" in one else one for one in record["loaders"]]
    return evil
