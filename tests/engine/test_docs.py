"""The examples in docs/engine.md and docs/engine-start.md run as written, and every option of a recipe is described."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from harness import warmed_torchrun
from warm import warmed

from hotlap import engine
from hotlap.engine import checkpoints, recipe

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "engine.md").read_text()
START = (ROOT / "docs" / "engine-start.md").read_text()


def test_the_examples_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "example"}
    for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(example, "engine.md", "exec"), space)
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"eager( on one thread)?( without oneDNN)?: rmse \d\.\d{3}", first)
    assert re.fullmatch(r"512 rows, rmse \d\.\d{3}, a learning rate to begin with: \de-\d\d", second)
    assert checkpoints.load(tmp_path / "runs" / "squares" / "last.pt")["place"]["epoch"] == 5


def test_the_page_to_begin_with_trains_and_goes_on_in_two_processes(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", START, re.DOTALL)
    (tmp_path / "train.py").write_text(program)
    found = []
    for launcher, epochs in (((), 2), (warmed_torchrun("--no-python"), 4)):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [*launcher, *warmed([sys.executable, "train.py", str(epochs)])]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        (line,) = done.stdout.splitlines()
        count, error = re.fullmatch(r"(\d) epochs, rmse (\d\.\d\d)", line).groups()
        assert int(count) == epochs
        found.append(float(error))
    assert found[0] > found[1]
    assert (tmp_path / "runs" / "first" / "model.pt2").exists()


def test_every_option_of_a_recipe_is_described():
    for name in recipe.Recipe.__dataclass_fields__:
        assert re.search(rf"`(Recipe\()?{name}\b", PAGE), name


def test_every_public_name_exists():
    assert all(hasattr(engine, name) for name in engine.__all__)
