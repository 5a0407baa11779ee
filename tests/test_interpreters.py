"""hotlap enters an interpreter that has torch but none of hotlap's own dependencies."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from harness import HOTLAP, PROGRAMS, bare, printed_losses, profile

from hotlap.records.plan import Choice
from hotlap.trial.local import LocalRunner
from hotlap.trial.runner import Spec

OURS = ("hotlap", "wrapt", "click", "rich", "psutil")


def with_needs(*names: str) -> set[str]:
    """The top-level entries in site-packages of these distributions and of all their dependencies."""
    entries, left, known = set(), list(names), set()
    while left:
        name = left.pop()
        if name in known:
            continue
        known.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # for another system or Python
            continue
        entries |= {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        left += [re.split(r"[^\w.-]", need)[0] for need in found.requires or () if "extra ==" not in need]
    return entries


@pytest.fixture
def python(tmp_path: Path) -> str:
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = environment.glob("lib/python3*/site-packages")
    installed = Path(str(distribution("torch").locate_file("")))
    for entry in with_needs("torch", "numpy"):
        (site / entry).symlink_to(installed / entry)
    return str(environment / "bin" / "python")


def test_profile_enters_an_interpreter_without_hotlap(python, tmp_path):
    question = f"from importlib.util import find_spec; print([name for name in {OURS!r} if find_spec(name)])"
    assert bare([python, "-c", question], tmp_path).stdout == "[]\n"
    script = tmp_path / "train.py"
    prints = "\nimport sys; print(sys.path, [name for name in ('click', 'rich', 'psutil') if name in sys.modules])\n"
    script.write_text((PROGRAMS / "plain_loop.py").read_text() + prints)
    command = [python, str(script)]
    alone = bare(command, tmp_path, PYTHONPATH=str(PROGRAMS))
    ran = profile(command, tmp_path, "--full", PYTHONPATH=str(PROGRAMS))

    assert alone.code == 0, alone.stderr
    assert ran.code == 0, ran.stderr
    assert ran.stdout == alone.stdout
    assert ran.observation["losses"] == printed_losses(alone.stdout)
    assert len(ran.observation["losses"]) == 24
    assert {loader["role"] for loader in ran.observation["loaders"]} == {"train"}


@pytest.mark.thorough
def test_run_applies_optimisations_in_an_interpreter_without_hotlap(python, tmp_path):
    command = [python, str(PROGRAMS / "plain_loop.py")]
    alone = bare(command, tmp_path, PYTHONPATH=str(PROGRAMS))
    whole = [*HOTLAP, "run", "--plan", "safe", "--at-once", "--run-dir", str(tmp_path / "kept"), *command]
    ran = bare(whole, tmp_path, PYTHONPATH=str(PROGRAMS))

    assert ran.code == alone.code == 0, ran.stderr
    assert ran.stdout == alone.stdout
    assert "hotlap: applied: " in ran.stderr
    assert "failed" not in ran.stderr


def test_tune_runs_trials_in_an_interpreter_without_hotlap(python, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PROGRAMS))
    runner = LocalRunner((python, str(PROGRAMS / "plain_loop.py")), tmp_path / "kept", 4.0)
    choices = (Choice(name="fused-optimizer"),)
    tried = runner.run(Spec(number=0, arm="new", choices=choices, seed_shift=0, steps=20, least=10, seconds=600.0))

    assert tried.ended == "measured", tried.why
    assert [outcome.name for outcome in tried.outcomes] == ["fused-optimizer"]
