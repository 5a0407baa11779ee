"""tqdm draws rarely, shows the newest text at the end, and prints are unchanged."""

from __future__ import annotations

import io
import sys

import pytest
from harness import alone, environment, python, warm
from tqdm import std as tqdm_std
from tqdm import tqdm
from warm import warmed

import hotlap
from tests.observations import machine, observation


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")


def loop(bar, steps=50):
    for number in bar:
        bar.set_postfix(loss=number)
        bar.set_description(f"step {number}")
    assert number == steps - 1


def draws(text: str) -> int:
    return text.count("\r")


def test_a_bar_redrawn_at_every_step_is_drawn_once_a_second(capsys):
    loop(tqdm(range(50)))
    plainly = capsys.readouterr().err
    with hotlap.enable(None, with_=["progress-rate"]) as enabled:
        loop(tqdm(range(50)))
    seldom = capsys.readouterr().err
    assert draws(plainly) > 100
    assert draws(seldom) < 12
    for drawn in (plainly, seldom):
        assert "step 49: 100%" in drawn.split("\r")[-1]
        assert "loss=49" in drawn.split("\r")[-1]
    assert enabled.outcomes[0].status == "applied"
    assert "every 1 s" in enabled.outcomes[0].why


def test_settings_chosen_by_the_program_stay():
    file = io.StringIO()
    with hotlap.enable(None, with_=["progress-rate=7"]) as enabled:
        assert tqdm(range(3), mininterval=0.01, disable=False).mininterval == 0.01
        assert tqdm(range(3), file=file).mininterval == 0.1
        loop(tqdm(range(50), file=file))
        assert enabled.outcomes[0].status == "no effect"
        assert "no tqdm bar" in enabled.outcomes[0].why
        assert tqdm(range(3)).mininterval == 7.0
    assert draws(file.getvalue()) > 100


def test_disabled_bars_are_reported_as_no_effect():
    with hotlap.enable(None, with_=["progress-rate"]) as enabled:
        assert tqdm(range(3), disable=None).disable, "stderr is no terminal"
        assert (enabled.outcomes[0].status, enabled.outcomes[0].why) == (
            "no effect",
            "the program's bars are disabled",
        )


def test_arguments_reach_the_bar():
    with hotlap.enable(None, with_=["progress-rate"]):
        bar = tqdm(range(3), "text", 3)
        bar.set_postfix({"a": 1}, False, b=2)
        bar.set_postfix_str("now", True)
        bar.set_postfix_str("later", True)
        bar.set_description_str(desc="done")
    assert (bar.desc, bar.postfix, bar.total) == ("done", "later", 3)


def test_closing_restores_tqdm():
    before = dict(vars(tqdm_std.tqdm))
    with hotlap.enable(None, with_=["progress-rate"]):
        assert vars(tqdm_std.tqdm)["set_postfix"] is not before["set_postfix"]
    assert dict(vars(tqdm_std.tqdm)) == before


@pytest.mark.parametrize("when", ["before", "after"])
def test_tqdm_may_be_imported_at_any_time_or_be_missing(when, tmp_path):
    """A program without tqdm runs unchanged; a program that imports it late is still served."""
    block = "import sys\nsys.modules['tqdm'] = None\nimport torch\n" if when == "before" else "import torch\n"
    script = tmp_path / "train.py"
    script.write_text(
        f"{block}import hotlap\nwith hotlap.enable(None, with_=['progress-rate']) as e:\n"
        + ("    pass\n" if when == "before" else "    from tqdm import tqdm\n    list(tqdm(range(2)))\n")
        + "print(e.outcomes[0].status)\n"
    )
    ran = warm([sys.executable, str(script)], tmp_path)
    assert ran.stdout == ("no effect\n" if when == "before" else "applied\n"), ran.stderr


def test_all_printed_lines_arrive_in_order(tmp_path, tmp_path_factory):
    import subprocess

    command = [sys.executable, "-m", "hotlap", "run", "--run-dir", "kept", "--with", "progress-rate"]
    expected = alone(tmp_path_factory, python("no_loader.py"))
    ran = subprocess.run(
        [*command, *warmed(python("no_loader.py"))], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert ran.stdout == expected.stdout
    assert ran.returncode == 0


def test_estimates_its_gain_from_unattributed_time_where_bars_are_likely():
    from hotlap.catalog.progress_rate.detect import detect

    assert detect(observation(shares={"rest": 0.2})) is None
    seen = observation(shares={"rest": 0.2}, machine=machine(versions={"lightning": "2.6"}))
    assert detect(seen).most == pytest.approx(0.2)
