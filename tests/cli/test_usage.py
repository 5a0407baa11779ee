"""Wrong usage is one line in one style: what was typed, what is allowed, and what to type next."""

from __future__ import annotations

import re
import subprocess

import click
import pytest

from hotlap.cli import cli
from hotlap.records.tune_record import VALUE
from tests.harness import HOTLAP

WRONG = [
    (["tuen", "python", "train.py"], "no such verb: tuen; did you mean hotlap tune?"),
    (["train.py", "--lr", "1"], "no such verb: train.py; put a verb and python in front of a script: "
     "hotlap run python train.py --lr 1"),
    (["sh", "train.sh"], "no such verb: sh; put a verb in front of a command: hotlap run sh train.sh"),
    (["frobnicate"], "no such verb: frobnicate; there are run, tune, profile, scan, compare, bench, runs, show, "
     "report, list, explain, doctor, completion"),
    (["--versoin"], "no such option: --versoin; did you mean --version?"),
    (["run", "--rsik", "exact", "python"], "no such option: --rsik; did you mean --risk?"),
    (["profile", "--qqq", "python"], "no such option: --qqq; see: hotlap profile --help"),
    (["run"], "COMMAND is missing; type, for example: hotlap run python train.py"),
    (["explain"], "CODE is missing; type, for example: hotlap explain fused-optimizer"),
    (["run", "--risk"], "--risk needs a value; see: hotlap run --help"),
    (["show", "--json=1"], "--json takes no value; see: hotlap show --help"),
    (["show", "a", "b"], "unexpected: b; see: hotlap show --help"),
    (["run", "--risk", "exat", "python"], "--risk exat: must be exact, rounding or numeric"),
    (["profile", "--steps", "many", "python"], "--steps many: must be a whole number, at least 1"),
    (["tune", "--steps", "20", "python"], "--steps 20: must be a whole number, at least 25"),
    (["profile", "--steps", "0", "python"], "--steps 0: must be a whole number, at least 1"),
    (["profile", "--max-seconds", "0", "python"], "--max-seconds 0.0: must be a number above 0"),
    (["tune", "--budget", "10", "python"], "--budget: 10 has no unit; did you mean 10s or 10m?"),
    (["tune", "--budget", "soon", "python"], "--budget: 'soon' is not a duration; write 90s, 10m or 1h"),
    (["tune", "--min-effect", "200%", "python"], "--min-effect: 200% must be below 100%; write 3%"),
    (["tune", "--min-effect", "0%", "python"], "--min-effect: 0% must be above 0%; write 2%"),
    (["tune", "--metric", "val loss:", "python"],
     "--metric: put the value in a group, as in --metric 'val loss[ :=]+([-+.0-9eE]+)'"),
    (["show", "--json", "--markdown"], "--json and --markdown exclude each other; give one of them"),
    (["explain", "fused"], "no optimisation is called fused; did you mean fused-optimizer?"),
    (["explain", "data-weit"], "nothing is called data-weit; did you mean data-wait?"),
    (["explain", "item-in-lop"], "nothing is called item-in-lop; did you mean item-in-loop?"),
    (["profile", "--stesp", "3", "python"], "no such option: --stesp; did you mean --steps?"),
    (["list", "nonsense"], "nothing in the list is nonsense; see all of it: hotlap list"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "line"), WRONG, ids=lambda part: " ".join(part) if isinstance(part, list) else "")
def test_one_line_says_what_to_type_next(words, line, typed):
    assert typed(*words) == (2, "", f"hotlap: {line}\n")


def test_wrong_usage_of_compare_is_not_an_inconclusive_comparison(typed):
    assert typed("compare", "main") == (
        64,
        "",
        "hotlap: NEW is missing; type, for example: hotlap compare main HEAD -- python train.py\n",
    )


@pytest.mark.parametrize("printed", ["val loss 0.5", "val loss: 1.25e-05", "epoch 3 val loss=-0.5, lr 1"])
def test_the_proposed_pattern_reads_numbers_as_logs_write_them(printed):
    found = re.search(f"val loss{VALUE}", printed)
    assert found is not None
    assert float(found[1]) in (0.5, 1.25e-05, -0.5)


def test_interrupted_verbs_say_so(typed, answering):
    answering("hotlap.cli.catalogue", _optimisations=KeyboardInterrupt())
    assert typed("list") == (130, "", "\nhotlap: interrupted\n")


def test_without_a_verb_the_help_is_shown(typed):
    assert typed() == typed("--help")


def test_help_lists_every_verb_under_what_it_is_for(typed):
    text = typed("--help")[1]
    for heading, verbs in cli.groups.items():
        section = text.partition(f"{heading}:")[2].partition("\n\n")[0]
        assert all(f"  {name} " in section for name in verbs), heading


@pytest.mark.parametrize("name", cli.verbs)
def test_every_verb_shows_two_examples_that_work(name, typed):
    verb = cli.verbs[name]
    assert len(verb.examples) >= 2
    text = typed(name, "--help")[1]
    for example in verb.examples:
        assert f"  {example}\n" in text
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.context_settings.get("help_option_names") is None


def test_an_error_begins_on_a_line_of_its_own(tmp_path):
    log = tmp_path / "log"
    log.write_text("step 5")  # as a progress bar leaves it
    with log.open("a") as stream:
        ended = subprocess.run(
            [*HOTLAP, "show", "--run-dir", str(tmp_path), "1"], stderr=stream, cwd=tmp_path, check=False
        )
    assert ended.returncode == 72
    assert log.read_text().startswith("step 5\nhotlap: no run")
