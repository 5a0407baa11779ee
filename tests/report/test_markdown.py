"""The page in Markdown says what the terminal page says."""

import re

import pytest

from hotlap.diagnose import diagnose
from hotlap.report import markdown
from tests.observations import (
    PROJECT,
    input_bound,
    launch_bound,
    not_a_number,
    observation,
    on_cuda,
    partial,
    sync,
    sync_bound,
    two_ranks,
)

SCENARIOS = (observation, on_cuda, input_bound, sync_bound, launch_bound, two_ranks, partial, not_a_number)


def drawn(seen) -> str:
    return markdown(seen, diagnose(seen))


def test_the_verdict_is_the_heading():
    assert drawn(input_bound()).startswith("### Input-bound: 72 % of each step")


def test_the_bar_is_text_and_its_percents_add_up():
    rows = re.findall(r"^\| \w+ \| [\d.]+ \| (\d+) % \| (█*) \|$", drawn(input_bound()), re.MULTILINE)
    assert sum(int(percent) for percent, _ in rows) == 100
    assert sum(len(bar) for _, bar in rows) == 50


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_row_of_a_table_has_as_many_cells_as_its_head(scenario):
    for block in drawn(scenario()).split("\n\n"):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines() if line.startswith("|")}
        assert len(counts) <= 1


@pytest.mark.parametrize("title", ["Host syncs", "Kernels on the device", "Findings", "What to do next"])
def test_the_parts_of_the_terminal_page_are_there(title):
    assert f"**{title}**" in drawn(sync_bound())


def test_the_slowest_rank_is_in_bold():
    assert re.search(r"^\| \*\*1\*\* \|.*\*\*slowest\*\*", drawn(two_ranks()), re.MULTILINE)


def test_user_text_cannot_break_a_table():
    seen = observation(syncs=(sync(file=f"{PROJECT}/a|b.py", function="<lambda>"),))
    (row,) = [line for line in drawn(seen).splitlines() if "b.py" in line]
    assert r"\<lambda\>" in row
    assert len(re.findall(r"(?<!\\)\|", row)) == 7


def test_a_run_without_a_step_is_drawn():
    assert "no training step was measured" in drawn(partial())
