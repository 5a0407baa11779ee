"""Public programs: the list is valid, and the runner reports what is the same, what is faster and what failed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

PUBLIC = Path(__file__).resolve().parents[2] / "benchmarks" / "public"
WANTED = {
    *("language model", "speech", "segmentation", "diffusion", "detection", "graph", "gan", "reinforcement learning"),
    *("lbfgs", "lightning", "fabric", "accelerate", "trainer", "two ranks", "endless sampler", "hand-made batches"),
    *("timm", "pytorch/vision"),
}

TRAINS = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range({steps}):
    loss = (model(torch.ones(2, 4)) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(f"step {{step}} loss {{loss.item():.6f}} took {{__import__('time').time()}}")
    {more}
print("read", open(sys.argv[1] + "/words.txt").read())
"""
PRINTS = """
import os, sys
for step in range({steps}):
    print(f"step {{step}}")
    {more}
"""
TOML = """
repository = "somebody/something"
commit = "{commit}"
command = ["python", "train.py", "{{data}}"]
progress = '^step'
kinds = ["a test"]
data = "words"
varies = ['took [\\d.]+']
"""


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"public_{name}", PUBLIC / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def corpus():
    return load("program").programs()


def test_the_list_has_many_programs_of_many_kinds(corpus):
    assert len(corpus) >= 40
    assert len({program.repository for program in corpus}) >= 20
    words = [" ".join((program.name, program.repository, *program.kinds)).lower() for program in corpus]
    missing = {word for word in WANTED if not any(word in text for text in words)}
    assert not missing


def test_every_named_recipe_exists(corpus):
    named = {program.data.partition(":")[0] for program in corpus if program.data is not None}
    there = {path.stem for path in (PUBLIC / "data").glob("*.py")} - {"__init__"}
    assert named == there


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("repository = 'a/b'", "KeyError('commit')"),
        (TOML.format(commit="abc"), "commit must be a full hash"),
        (TOML.format(commit="0" * 40).replace("'^step'", "'('"), "missing )"),
        (TOML.format(commit="0" * 40) + "speed = 3", "unknown speed"),
        ("=", "Invalid"),
    ],
)
def test_rejects_an_unusable_file_by_name(tmp_path, text, says):
    program = load("program")
    (tmp_path / "one.toml").write_text(text)
    with pytest.raises(program.ProgramWrong, match=r"one\.toml: ") as error:
        program.programs([], tmp_path)
    assert says in str(error.value)


@pytest.fixture
def run_program(tmp_path):
    """Make a repository with a training script and the file that names it, and run it in all arms."""

    def make(script: str = PRINTS, steps: int = 40, more: str = "pass", options: tuple[str, ...] = ()) -> dict:
        repository = tmp_path / "mirror" / "somebody+something"
        repository.mkdir(parents=True)
        (repository / "train.py").write_text(script.format(steps=steps, more=more))
        git = ["git", "-C", str(repository), "-c", "user.name=x", "-c", "user.email=x"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
            subprocess.run([*git, *words], check=True)
        commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        (repository / ".git").rename(tmp_path / "git")
        (repository / "train.py").unlink()
        repository.rmdir()
        (tmp_path / "git").rename(repository)
        programs = tmp_path / "programs"
        programs.mkdir()
        (programs / "one.toml").write_text(TOML.format(commit=commit).replace('data = "words"', 'data = "mnist"'))
        made = tmp_path / "work" / "data" / "mnist"
        made.mkdir(parents=True)
        (made / "words.txt").write_text("hello")
        return measured(tmp_path, programs, *options)

    return make


def measured(folder: Path, programs: Path, *options: str) -> dict:
    words = ["--programs", programs, "--sources", folder / "mirror", "--work", folder / "work", "--seconds", "60"]
    command = [sys.executable, PUBLIC / "run.py", *words, "--rounds", "2", "--out", folder / "out.json", *options]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    (found,) = json.loads((folder / "out.json").read_text())["programs"]
    return found


@pytest.mark.thorough
def test_a_program_is_timed_and_its_output_compared(run_program):
    found = run_program(TRAINS)
    against = found["against_plain"]["run"]
    assert found["repeats_itself"] is True
    assert against["differs"] is None
    assert against["failed"] == []
    assert 0.2 < against["whole"] < 5
    assert [run["lines"] for run in found["arms"]["run"]] == [40, 40]
    assert all("hotlap: " in line for run in found["arms"]["run"] for line in run["said"])


def test_a_program_that_detects_hotlap_differs(run_program):
    found = run_program(more="print('entered' if 'HOTLAP_SESSION' in os.environ else 'alone')")
    differences = found["against_plain"]["run"]["differs"]
    assert found["repeats_itself"] is True
    assert differences == ["stdout: alone", "stdout: entered"]


def test_reports_a_program_that_fails_only_under_hotlap(run_program):
    found = run_program(more="assert not 'HOTLAP_SESSION' in os.environ")
    assert found["against_plain"]["run"]["failed"] == [1, 1]
    assert [run["code"] for run in found["arms"]["plain"]] == [0, 0]


def test_a_program_that_differs_from_itself_is_not_compared(run_program):
    found = run_program(more="print(os.urandom(4))")
    assert found["repeats_itself"] is False
    assert found["against_plain"]["run"]["differs"] is None


def test_an_arm_ends_once_enough_progress_has_come(run_program):
    waits = "sys.stdout.flush(); __import__('time').sleep(600 if step == 2 else 0)"
    found = run_program(more=waits, options=("--lines", "3", "--arms", "plain,fixed"))
    assert [run["lines"] for run in found["arms"]["fixed"]] == [3, 3]
    assert [run["code"] for run in found["arms"]["plain"]] == [None, None]
    assert found["against_plain"]["fixed"]["differs"] is None
