"""The example in docs/engine.md runs as written, and the page describes every option of a recipe."""

from __future__ import annotations

import re
from pathlib import Path

from hotlap import engine
from hotlap.engine import checkpoints, recipe

PAGE = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()


def test_the_examples_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "example"}
    for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(example, "engine.md", "exec"), space)
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"eager( on one thread)?( without oneDNN)?: rmse \d\.\d{3}", first)
    assert re.fullmatch(r"512 rows, rmse \d\.\d{3}, a learning rate to begin with: \de-\d\d", second)
    assert checkpoints.load(tmp_path / "runs" / "squares" / "last.pt")["place"]["epoch"] == 5


def test_every_option_of_a_recipe_is_described():
    for name in recipe.Recipe.__dataclass_fields__:
        assert re.search(rf"`(Recipe\()?{name}\b", PAGE), name


def test_every_public_name_exists():
    assert all(hasattr(engine, name) for name in engine.__all__)
