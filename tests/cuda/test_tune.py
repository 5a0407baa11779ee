"""`hotlap tune` on a GPU: real processes, timed by the device and judged against the program's own noise."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from harness import HOTLAP, bare
from tunes import begun, candidate, go_on

from hotlap import store
from hotlap.judge.curves import curves
from hotlap.judge.gates import gate
from hotlap.judge.verdict import judge
from hotlap.records.plan import Choice, Risk
from hotlap.records.trial import EndReason, TrialStage
from hotlap.records.tune_record import TuneRecord
from hotlap.trial.local import LocalRunner
from hotlap.trial.runner import Spec
from hotlap.trial.trial_process import Limits
from hotlap.workflows.tune.book import empty_trial

pytestmark = pytest.mark.cuda
PROGRAM = Path(__file__).parent / "program.py"
TRAINING = """
import json, os
from pathlib import Path
import torch
from torch import nn
session = json.loads(Path(os.environ["HOTLAP_SESSION"]).read_text())
chosen = {one["name"] for one in session["choices"]}
torch.manual_seed(0)
rows, places = torch.randn(1 << 16, 8, device="cuda"), torch.randint(0, 64, (1 << 16,), device="cuda")
model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(2000):
    made = model(rows)
    if ATOMICS:
        made = torch.zeros(64, 8, device="cuda").index_add(0, places, made) / 1024
    loss = made.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 10 and TOO_MUCH & chosen:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    if step == 10 and LARGE:
        torch.empty(LARGE << 20, dtype=torch.uint8, device="cuda")
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOTLAP_STRICT", "1")

    def written(too_much=(), atomics=False, large=0):
        path = tmp_path / "training.py"
        path.write_text(f"TOO_MUCH, ATOMICS, LARGE = {set(too_much)!r}, {atomics}, {large}\n{TRAINING}")
        return (sys.executable, str(path))

    return written


def spec(number, choices=(), **more):
    values = {"arm": "new" if choices else "base", "seed_shift": 0, "steps": 60, "least": 25, "seconds": 120.0}
    return Spec(number=number, choices=choices, **values | more)


def test_a_short_tune_ends_with_a_plan(tmp_path):
    command = [sys.executable, str(PROGRAM), "--fault", "item"]
    ran = bare([*HOTLAP, "tune", "--budget", "4m", "--run-dir", str(tmp_path / "kept"), *command], tmp_path)
    assert ran.code == 0, ran.stderr
    run = store.find(None, tmp_path / "kept")
    record = run.load("tuning", TuneRecord)

    assert record.finished
    assert (run.folder / "plan.json").exists()
    assert list((tmp_path / "kept" / "plans").glob("*.json"))
    assert torch.cuda.get_device_name() in record.circumstances.hardware
    for sample in record.trials[0].samples:
        assert sample.ended == EndReason.MEASURED
        assert sample.device_mb > 0
        assert 2 <= len(sample.blocks) <= 12, "by the clock of the device"
        assert all(block.seconds > 0 for block in sample.blocks)


def test_a_trial_that_runs_out_of_memory_is_recorded_and_the_next_one_runs(program, tmp_path):
    command = program(too_much=["gc-pauses"])
    run = begun(tmp_path / "kept", candidate("gc-pauses"), candidate("fused-optimizer", most=0.4))
    runner = LocalRunner(command, tmp_path / "trials", 64.0)
    done = go_on(run, runner, tmp_path / "kept", judging=judge).tuning
    why = {verdict.trial: verdict.why for verdict in done.verdicts}

    assert why["alone-gc-pauses"].startswith("out of memory: ")
    assert "CUDA out of memory" in why["alone-gc-pauses"]
    assert len(next(trial for trial in done.trials if trial.name == "alone-fused-optimizer").samples) >= 4
    assert done.finished


def test_a_device_memory_limit_stops_only_trials_that_exceed_it(program, tmp_path):
    command = program(large=512)
    tight, wide = (LocalRunner(command, tmp_path / "t", 64.0, limits=Limits(device_mb=mb)) for mb in (256.0, 2048.0))
    assert tight.run(spec(0)).ended == EndReason.OUT_OF_MEMORY
    assert wide.run(spec(1)).ended == EndReason.MEASURED


def test_a_nondeterministic_baseline_does_not_reject_an_exact_entry(program, tmp_path):
    """index_add uses atomics, so two runs of the same program differ in the last bits, or happen not to."""
    runner = LocalRunner(program(atomics=True), tmp_path / "trials", 64.0)
    choice = (Choice(name="profiler-marks", asked=True),)
    base, again, nudged = runner.run(spec(0)), runner.run(spec(1)), runner.run(spec(2, nudge=2.0**-16))
    new = runner.run(spec(3, choice))
    noise = empty_trial("noise", TrialStage.NOISE, None, (), ())
    trial = empty_trial("alone-profiler-marks", TrialStage.ALONE, candidate("profiler-marks"), (), choice)
    noise = replace(noise, samples=(base, nudged))
    trial = replace(trial, samples=(again, new))

    assert [sample.ended for sample in (base, again, nudged, new)] == [EndReason.MEASURED] * 4
    assert trial.risk == Risk.EXACT
    found = gate(trial, noise, None)
    if curves(trial, noise).repeats is False:
        assert "does not repeat itself" in found.rule
    assert found.passed is not False, found.why
