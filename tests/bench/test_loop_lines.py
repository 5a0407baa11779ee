"""Each line of a training loop is timed, and the program otherwise stays the same."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from hotlap.bench import workloads

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "observing"))
import loop_lines

SOURCE = """
def train_epoch(batches, seen):
    seen.append("begin")
    for batch in batches:
        with open(batch) as file:
            text = file.read()
        seen.append(text)
    return len(seen)
"""


def timed(source, clock):
    names = {loop_lines.CLOCK: clock}
    exec(compile(ast.fix_missing_locations(loop_lines.Laps().visit(ast.parse(source))), "naive", "exec"), names)
    return names


def test_each_statement_of_the_loop_is_timed_after_the_first_epochs(tmp_path):
    (tmp_path / "batch").write_text("contents")
    clock, seen = loop_lines.Clock(), []
    train_epoch = timed(SOURCE, clock)["train_epoch"]
    for epoch in range(4):
        assert train_epoch([tmp_path / "batch"] * 3, seen) == 4 * (epoch + 1)
    steps_of = {row["text"]: row["steps"] for row in clock.medians(SOURCE)}
    assert steps_of == {
        "for batch in batches:": 6,
        "with open(batch) as file:": 6,
        "text = file.read()": 6,
        "end of: with open(batch) as file:": 6,
        "seen.append(text)": 6,
    }


@pytest.mark.parametrize("name", workloads.names(workloads.folder()))
def test_the_loop_of_every_workload_is_found(name):
    source = (workloads.folder() / name / "naive.py").read_text(encoding="utf-8")
    found = ast.unparse(loop_lines.Laps().visit(ast.parse(source)))
    assert found.count(f"{loop_lines.CLOCK}(0)") == 1
    assert found.count(loop_lines.CLOCK) > 8
