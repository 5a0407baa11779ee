"""The page in a terminal shows every part, fits its width, and no observation breaks it."""

import dataclasses
import io
import re

import pytest
from rich.console import Console

from hotlap.diagnose import diagnose
from hotlap.report import terminal
from hotlap.report.profile.actions import next_steps
from hotlap.report.shared.parts import Column, Table
from hotlap.report.shared.terminal import draw_table
from tests.observations import (
    PROJECT,
    device,
    hot_line,
    input_bound,
    kernel,
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


def drawn(seen, width: int = 100, **options) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    terminal(seen, diagnose(seen), console)
    return console.file.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


def bar_of(text: str) -> str:
    """The line of letters, one per cell."""
    return next(line for line in text.splitlines() if re.fullmatch(r"[A-Z0-9]{20,}", line))


def percents_of(text: str) -> list[int]:
    """The percents of the legend, which follows the bar up to an empty line."""
    legend = text.split(bar_of(text))[1].strip("\n").split("\n\n")[0]
    return [0 if less else int(share) for less, share in re.findall(r"(<?)(\d+) %", legend)]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_line_is_wider_than_the_terminal(scenario, width):
    assert max(map(len, drawn(scenario(), width).splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_colour_changes_nothing_but_the_bar(scenario, width):
    coloured = drawn(scenario(), width, force_terminal=True, color_system="truecolor")
    assert "\x1b[" in coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line[2:] for line in plain.splitlines() if "█" not in line and line[:1] != "■"] == [
        line[2:]
        for line in drawn(scenario(), width).splitlines()
        if not re.fullmatch(r"[A-Z0-9]{20,}", line) and not re.match(r"[A-Z0-9] \S+ .* ms ", line)
    ]


def test_the_verdict_comes_first():
    assert drawn(input_bound(), 200).startswith("Input-bound: 72 % of each step waits for data")


def test_speed_ceiling_and_device_are_in_one_line():
    assert (
        "step 40.0 ms (p10–p90 36.0–43.1, n=50) · 1,600 samples/s · with one cached batch 5,440 samples/s (3.4×)"
        in drawn(input_bound(), 200)
    )
    assert "device busy 20 %" in drawn(sync_bound(), 200)


class TestBar:
    @pytest.mark.parametrize("width", [60, 80, 120, 300])
    def test_the_bar_is_as_wide_as_the_terminal_up_to_a_limit(self, width):
        assert len(bar_of(drawn(input_bound(), width))) == min(width, 100)

    def test_segments_are_in_proportion(self):
        bar = bar_of(drawn(observation(shares={"data": 0.25, "forward": 0.75}), 100))
        assert bar.count("D") == pytest.approx(25, abs=1)
        assert bar.count("D") + bar.count("F") == 100

    def test_every_phase_is_visible_however_short(self):
        assert bar_of(drawn(observation(shares={"data": 0.0001, "forward": 0.9999}))).startswith("DF")

    @pytest.mark.parametrize(
        "shares",
        [
            {"data": 1 / 3, "forward": 1 / 3, "backward": 1 / 3},
            {"data": 0.005, "copy": 0.005, "forward": 0.985, "rest": 0.005},
            {"data": 0.145, "forward": 0.145, "backward": 0.145, "optimizer": 0.145, "sync": 0.145, "rest": 0.275},
            {"data": 0.2, "forward": 0.2},  # a window that was observed in part
        ],
    )
    @pytest.mark.parametrize("width", [60, 100, 140])
    def test_percents_are_rounded_as_in_the_sentences(self, shares, width):
        known = [share / sum(shares.values()) for share in shares.values()]
        shown = percents_of(drawn(observation(shares=shares), width))  # in columns from above, so in any order
        assert sorted(shown) == sorted(round(100 * share) for share in known)

    def test_phases_that_took_no_time_are_left_out(self):
        assert "garbage" not in drawn(observation(shares={"garbage": 0.0, "forward": 1.0}))

    def test_user_sections_appear_under_their_own_name(self):
        text = drawn(launch_bound())
        assert "1 augment [gpu]" in text
        assert "1111" in bar_of(text)


class TestTables:
    def test_syncs_are_listed_by_line_with_their_effect(self):
        text = words(drawn(sync_bound(), 120))
        assert "train.py:40 train item 3.0 4.0 waits" in text
        assert "train.py:41 train item 1.0 0.01 would wait on CUDA" in words(drawn(observation(), 120))

    def test_only_the_eight_most_costly_syncs_are_listed(self):
        text = drawn(sync_bound(), 120)
        assert "and 3 more" in text
        assert "train.py:47" in text
        assert "train.py:48" not in text

    def test_places_are_relative_to_where_the_command_ran(self):
        rows = (sync(file=f"{PROJECT}/src/loop.py"), sync(file="/opt/venv/site-packages/lib/log.py", line=3))
        text = drawn(observation(syncs=rows), 120)
        assert "src/loop.py:41" in text
        assert "lib/log.py:3" in text
        assert PROJECT not in text
        assert "site-packages" not in text

    def test_a_folder_with_the_same_prefix_is_a_different_folder(self):
        assert f"{PROJECT}-old/a.py:41" in drawn(observation(syncs=(sync(file=f"{PROJECT}-old/a.py"),)), 160)

    def test_only_the_six_hottest_lines_are_listed(self):
        lines = tuple(hot_line("rest", line, share=0.3 - line / 100) for line in range(1, 10))
        text = drawn(observation(hot_lines=lines))
        assert "train.py:6 " in text
        assert "train.py:7 " not in text
        assert "and 3 more" in text

    def test_findings_are_listed_with_their_bound(self):
        text = words(drawn(input_bound(), 160))
        assert re.search(r"1 data-wait the loop waits .* 3\.4× data\.py:31", text)
        assert "gains never add up" in text

    def test_an_unknown_gain_is_not_given_as_a_figure(self):
        text = drawn(two_ranks(), 160)
        row = next(line for line in text.splitlines() if re.match(r"\d +threads-oversubscribed", line))
        assert "×" not in row.split("measured")[-1]

    def test_the_slowest_rank_is_marked(self):
        rows = [line.split() for line in drawn(two_ranks()).splitlines() if re.match(r" *[01] +50 ", line)]
        assert [row[-1] == "slowest" for row in rows] == [False, True]
        assert "Ranks" not in drawn(observation())

    def test_kernels_of_the_device_are_listed(self):
        assert "ampere_sgemm_32x128_tn" in drawn(launch_bound(), 120)

    def test_a_very_long_kernel_name_is_cut(self):
        seen = on_cuda(device=device(9.0, kernels=(kernel("matmul", 1.0, "k" * 500),)))
        assert "k" * 61 not in drawn(seen, 200)


class TestNextSteps:
    def test_the_first_three_findings_give_advice_with_their_lines(self):
        text = words(drawn(sync_bound(), 200))
        assert "1. sync-in-loop (train.py:40): keep the value on the device" in text
        assert re.search(r"3\. \S+ \(train\.py:43\): print tensors only every N steps", text)

    def test_the_same_advice_is_given_once(self):
        assert drawn(sync_bound(), 200).count("keep the value on the device") == 1

    @pytest.mark.parametrize("scenario", SCENARIOS)
    def test_only_existing_commands_are_advised(self, scenario):
        seen = scenario()
        advised = " ".join(next_steps(seen, diagnose(seen)))
        commands = set(re.findall(r"\bhotlap (\w+)(?: (--\w+))?", advised))
        of_profile = {("profile", "--steps"), ("profile", "--trace"), ("profile", "")}
        assert commands <= {*of_profile, ("show", ""), ("run", ""), ("tune", "")}

    def test_few_steps_lead_to_advice_to_measure_more(self):
        seen = observation(steps=4, ended="time limit")
        assert "hotlap profile --steps 50 python train.py --epochs 3" in words(drawn(seen, 120))

    def test_a_failed_command_is_advised_to_be_repaired_first(self):
        assert "make the command work first, without hotlap: python train.py" in drawn(partial(), 120)


class TestCertainty:
    def test_cautions_are_shown_by_their_text(self):
        assert "step times vary by more than half of their median" in words(drawn(two_ranks(), 120))

    def test_a_caution_of_another_version_is_shown_by_its_name(self):
        assert "a name from a newer hotlap" in drawn(partial())

    def test_unknowns_are_listed(self):
        assert "cannot tell what input costs, because" in words(drawn(observation(loaders=()), 120))

    def test_a_loss_of_nan_is_reported(self):
        assert "loss nan at step 1" in drawn(not_a_number())


class TestAnyObservation:
    def test_machine_versions_and_command_are_shown(self):
        text = drawn(on_cuda(), 140)
        assert "AMD EPYC 9354, 16 cores, 64.0 GB, 1 × NVIDIA H100 80GB HBM3" in text
        assert "Python 3.11.7, torch 2.8.0, CUDA 12.8" in text
        assert "python train.py --epochs 3" in text

    def test_user_brackets_are_not_markup(self):
        seen = observation(syncs=(sync(file=f"{PROJECT}/[bold]odd[/nope].py"),), command=("python", "[red]x.py"))
        text = drawn(seen, 120)
        assert "[bold]odd[/nope].py:41" in text
        assert "[red]x.py" in text

    def test_an_ascii_terminal_gets_ascii(self):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="ascii")
        seen = launch_bound()
        terminal(seen, diagnose(seen), Console(file=stream, width=80))
        stream.flush()
        text = raw.getvalue().decode("ascii")
        assert "us a launch" in text
        assert "5.6x" in text
        assert "?" not in text

    @pytest.mark.parametrize("width", [20, 40])
    @pytest.mark.parametrize("scenario", SCENARIOS)
    def test_a_tiny_terminal_does_not_break_it(self, scenario, width):
        assert drawn(scenario(), width)

    def test_every_optional_field_may_be_missing(self):
        nothing = {
            field.name: ()
            for field in dataclasses.fields(observation())
            if isinstance(getattr(observation(), field.name), tuple)
        }
        bare = observation(
            **nothing, shares={}, settings=None, ceiling=None, samples_per_second=None, samples_per_step=None
        )
        assert "no step measured" in drawn(bare)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_where_not_all_columns_fit_the_extra_ones_are_left_out_and_never_the_result(width):
    names = ("resident-data", "whole-batch-fetch", "inplace-activations")
    table = Table(
        title="What was tried",
        columns=(
            Column("tried"), Column("on top of", extra=True), Column("times as fast", figures=True),
            Column("blocks", figures=True, extra=True), Column("cost", figures=True, extra=True), Column("result"),
        ),
        rows=((", ".join(names), ", ".join(names), "13.50 [12.15, 14.85]", "12 + 12", "12.3 s", "switched off"),),
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=width, highlight=False)
    draw_table(table, console)
    text = console.file.getvalue()
    assert {"switched", "off"} <= set(text.split())
    assert "13.50 [12.15, 14.85]" in text
    assert all(name in text for name in names), "no name is broken"
    assert max(map(len, text.splitlines())) <= width
