"""The report of a tune in a terminal, in Markdown and as JSON."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from hotlap.diagnose import diagnose
from hotlap.records.codec import from_json
from hotlap.records.tune_record import TuneRecord
from hotlap.report import tune_ending, tuned_json, tuned_markdown, tuned_terminal
from hotlap.report.tune.axis import Axis
from hotlap.report.tune.parts import Interval
from hotlap.report.tune.tables import picture
from tests.observations import input_bound
from tests.report import tunings

SCENARIOS = (
    tunings.faster,
    tunings.no_speedup,
    tunings.inconclusive,
    tunings.fallen_apart,
    tunings.unfinished,
    tunings.just_begun,
    tunings.one_process_each,
    tunings.not_a_number,
    tunings.hostile,
)


def on_terminal(made, width: int = 110, profiled: bool = True, **options) -> str:
    seen = input_bound() if profiled else None
    console = Console(file=io.StringIO(), width=width, **options)
    tuned_terminal(made, seen, diagnose(seen) if seen else None, console)
    return console.file.getvalue()


def ending(made, width: int = 80) -> str:
    console, seen = Console(file=io.StringIO(), width=width), input_bound()
    tune_ending(made, seen, diagnose(seen), console)
    return console.file.getvalue()


def as_markdown(made, profiled: bool = True) -> str:
    seen = input_bound() if profiled else None
    return tuned_markdown(made, seen, diagnose(seen) if seen else None)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_line_is_wider_than_the_terminal(scenario, width):
    assert max(map(len, on_terminal(scenario(), width).splitlines())) <= width


@pytest.mark.parametrize("width", [80, 90, 100, 110, 120])
def test_results_are_never_cut(width):
    text = on_terminal(tunings.faster(), width)
    for state in ("kept", "left out", "inconclusive", "rejected", "failed"):
        assert re.search(rf"(passed|failed|no evidence|not reached) +{state}", text)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("scenario", [*SCENARIOS, tunings.large])
def test_a_tune_ends_with_at_most_25_lines(scenario, width):
    lines = ending(scenario(), width).splitlines()
    assert len(lines) < 25, "the path of the report follows"
    assert max(map(len, lines)) <= width


def test_the_ending_says_what_is_kept_and_what_to_type():
    text = ending(tunings.faster())
    assert text.startswith("Proven 2.40 times as fast")
    assert re.search(r"^kept +loader-workers=4 2.02×, fused-optimizer 1.17×", text, re.M)
    assert re.search(r"^Train with it +hotlap run python train.py --epochs 3", text, re.M)
    assert re.search(r"^All details +hotlap show 20260102-030405-train", text, re.M)


def test_an_inconclusive_ending_says_what_to_do():
    assert re.search(r"^Measure longer +hotlap tune --budget 1800s", ending(tunings.inconclusive()), re.M)


def test_an_ending_without_a_gain_says_where_the_time_goes_and_what_else_may_help():
    text = " ".join(ending(tunings.no_speedup()).split())
    assert "Input-bound: 72 % of each step waits for data" in text
    assert "data-wait (data.py:31): set num_workers=4" in text
    assert "Allow rounding too hotlap tune --budget 600s --risk rounding" in text


@pytest.mark.parametrize("draw", [on_terminal, as_markdown])
@pytest.mark.parametrize("profiled", [True, False])
def test_every_part_of_the_report_is_there(draw, profiled):
    text = " ".join(draw(tunings.faster(), profiled=profiled).split())
    for part in (
        "Proven 2.40 times as fast",
        "What was tried",
        "baseline against itself",
        "all kept together",
        "The whole run has 200,000 steps",
        "won back after 605 steps",
        "the two furthest apart differ by",
        "Where the time went",
        "hotlap run --with loader-workers=4",
        "0123456789abcdef",
        "Processes that did not train to the end",
        "as written, +1, +2",
        "needs a GPU",
    ):
        assert part in text, part


def test_an_ascii_terminal_gets_ascii():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    seen = input_bound()
    tuned_terminal(tunings.faster(), seen, diagnose(seen), Console(file=stream, width=100))
    stream.flush()
    assert "2.40x" in raw.getvalue().decode("ascii")
    assert "?" not in raw.getvalue().decode("ascii")


def test_user_brackets_are_not_markup():
    assert "[red]worse[/red]" in on_terminal(tunings.faster(), 140)


def test_an_interval_is_drawn_as_text():
    drawn = picture(Interval(2.0, 1.0, 4.0), Axis(0.25, 4.0), 9)
    assert drawn == "    ──■──"
    assert picture(Interval(0.5, None, None), Axis(0.25, 4.0), 9) == "  ■ │    "


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_head(scenario):
    for block in as_markdown(scenario()).split("\n\n"):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines() if line.startswith("|")}
        assert len(counts) <= 1


def test_user_text_is_not_html_in_markdown():
    outside_code = re.sub(r"(`+).*?\1", "", as_markdown(tunings.hostile()))
    assert not re.search(r"(?<!\\)<", outside_code)


def test_markdown_has_one_row_per_optimisation():
    text = as_markdown(tunings.large(entries=30))
    assert len(re.findall(r"^\| made-up-\d\d \|", text, re.MULTILINE)) == 30


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_json_has_the_report_and_the_records_behind_it(scenario):
    made, seen = scenario(), input_bound()
    data = json.loads(tuned_json(made, seen, diagnose(seen)), parse_constant=pytest.fail)
    assert set(data) == {"report", "tuning", "observation", "diagnosis"}
    assert data["report"]["sentence"]
    assert repr(from_json(TuneRecord, json.dumps(data["tuning"]), "test")) == repr(made)
