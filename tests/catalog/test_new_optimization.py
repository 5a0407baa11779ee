"""scripts/new-optimization, run in a copy of the repository, creates an entry that passes the tests for every entry."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import environment

ROOT = Path(__file__).parents[2]


@pytest.fixture
def copy(tmp_path) -> Path:
    for folder in ("hotlap", "scripts"):  # compiled files too: they stay valid, and save compiling hotlap again
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns(".*"))
    (tmp_path / "tests").mkdir()
    for file in ("__init__.py", "conftest.py", "harness.py", "once.py", "patching.py", "warm.py", "observations.py"):
        shutil.copy(ROOT / "tests" / file, tmp_path / "tests")
    (tmp_path / "tests" / "catalog").mkdir()
    for file in ("__init__.py", "loops.py", "test_every.py"):
        shutil.copy(ROOT / "tests" / "catalog" / file, tmp_path / "tests" / "catalog")
    return tmp_path


def new(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(copy / "scripts" / "new-optimization"), *arguments]
    return subprocess.run(script, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_a_new_entry_passes_all_catalog_tests(copy):
    made = new(copy, "planted-entry", "host")
    assert made.returncode == 0, made.stderr
    assert "tests/catalog/test_planted_entry.py" in made.stdout.splitlines()
    files = ["tests/catalog/test_planted_entry.py", "tests/catalog/test_every.py"]
    chosen = "planted or codes_are_unique"
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, "-k", chosen], cwd=copy,
        env=environment(PYTHONPATH=str(copy)), capture_output=True, text=True,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout
    assert int(re.search(r"(\d+) passed", tested.stdout)[1]) >= 8


def test_a_new_entry_gets_the_next_code_of_its_kind(copy):
    for name in ("one", "two"):
        assert new(copy, name, "host").returncode == 0
    codes = [re.search(r'code="H(\d+)"', (copy / "hotlap/catalog" / name / "__init__.py").read_text())[1]
             for name in ("one", "two")]  # fmt: skip
    others = [int(number) for path in (ROOT / "hotlap/catalog").glob("*/__init__.py")
              for number in re.findall(r'code="H(\d+)"', path.read_text())]  # fmt: skip
    assert list(map(int, codes)) == [max(others) + 1, max(others) + 2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "usage"),
        (("Fused Optimizer", "host"), "is not a valid name"),
        (("../outside", "host"), "is not a valid name"),
        (("new-one", "cloud"), "unknown kind 'cloud'; use one of data, compute, host"),
        (("new-one",), "the kind is missing"),
        (("fused-optimizer", "compute"), "exists already"),
        (("new-one", "host", "more"), "one name and one kind"),
    ],
)
def test_bad_input_is_rejected_in_one_line_and_creates_nothing(copy, arguments, says):
    before = sorted(copy.rglob("*"))
    process = new(copy, *arguments)
    assert process.returncode == 2
    assert says in process.stdout + process.stderr
    assert (process.stdout + process.stderr).count("\n") == 1
    assert sorted(copy.rglob("*")) == before
