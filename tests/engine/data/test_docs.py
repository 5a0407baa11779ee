"""The examples in docs/engine-data.md and docs/engine-recurrent.md run as written."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "engine-data.md"


def test_the_examples_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 4
    space = {"__name__": "example"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), space)
    assert float(capsys.readouterr().out.split()[-1]) < 0.3
    assert space["train"].rows == 1362
    assert space["recipe"].batch_size == 256


def test_the_example_of_recurrent_layers_runs():
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "engine-recurrent.md").read_text(), re.DOTALL)
    space = {"__name__": "example"}
    exec(compile(block, "engine-recurrent.md", "exec"), space)
    assert space["outputs"].shape == (32, 100, 64)
    assert space["c"].shape == (2, 32, 64)


@pytest.mark.parametrize("name", re.findall(r"^\| `(\w+)\(", PAGE.read_text(), re.MULTILINE))
def test_every_source_and_reader_named_exists(name):
    from hotlap.engine import data

    assert name in data.__all__
