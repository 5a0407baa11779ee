"""The example in docs/engine.md runs as written, and the page describes every option of a recipe."""

from __future__ import annotations

import re
from pathlib import Path

from hotlap import engine
from hotlap.engine import checkpoints, recipe

PAGE = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL).group(1)
    exec(compile(example, "engine.md", "exec"), {"__name__": "example"})
    assert re.fullmatch(r"eager( on one thread)?( without oneDNN)?: rmse \d\.\d{3}\n", capsys.readouterr().out)
    assert checkpoints.load(tmp_path / "runs" / "squares" / "last.pt")["place"]["epoch"] == 5


def test_every_option_of_a_recipe_is_described():
    for name in recipe.Recipe.__dataclass_fields__:
        assert re.search(rf"`(Recipe\()?{name}\b", PAGE), name


def test_every_public_name_exists():
    assert all(hasattr(engine, name) for name in engine.__all__)
