"""hotlap scan --with-profile: findings are ranked by what a run measured, and what did not run is named."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from warm import warm_python

from hotlap import store
from hotlap.records.codec import SCHEMA
from hotlap.records.decisions import BlockTrial, Decisions
from hotlap.records.observation import FollowedLines
from tests.harness import profile
from tests.observations import loader, observation, sync
from tests.scan.command import scan

PROGRAM = """\
import torch
from torch import nn

def train(model, optimizer, inputs):
    for step in range(100_000):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if inputs.shape[0] > 100:
            print(loss.item())
        if loss.item() > 1e9:
            break

def refine(model, optimizer, loader):
    for inputs, targets in loader:
        loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        print(loss.item())

if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(4, 1).to(device)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(8, 4, device=device))
    refine(model, torch.optim.SGD(model.parameters(), lr=0.1), [])
"""
SYNCS = ("--select", "H201,H202,H203")


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "kept"))
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    os.utime(path, (1e9, 1e9))
    return tmp_path


def keep(seen, name="20261119-120000-train"):
    run = store.Run(store.prepare(store.home(), f"runs/{name}"))
    run.save("observation", replace(seen, started=datetime.now(timezone.utc).isoformat(timespec="seconds")))
    run.save("diagnosis", _diagnosis())
    return run


def _diagnosis():
    from hotlap.diagnose import diagnose

    return diagnose(observation())


def followed(ran, missed, file="train.py"):
    path = str(Path(file).resolve())
    return FollowedLines(steps=5, ran={path: tuple(ran)}, missed={path: tuple(missed)})


def syncs(*lines):
    return tuple(sync(file=str(Path("train.py").resolve()), line=line, ms_per_step=ms) for line, ms in lines)


def places(text):
    return [line.split(":")[1] for line in text.splitlines() if line.startswith("  train.py:")]


def test_a_real_profile_ranks_the_lines_that_ran_and_names_those_that_did_not(project):
    done = profile([warm_python(project), "train.py"], project, "--no-ceiling", "--steps", "20", "--quiet")
    assert done.code == 0, done.stderr
    code, text = scan("train.py", *SYNCS, "--with-profile")
    assert code == 1
    assert "5 steps followed line by line" in text
    assert places(text)[0] == "12"
    assert set(places(text)[1:]) == {"11", "20"}
    assert text.count("did not run in the steps followed") == 2
    findings = json.loads(scan("train.py", *SYNCS, "--with-profile", "--format", "json")[1])["findings"]
    assert {finding["line"]: finding["ran"] for finding in findings} == {11: False, 12: True, 20: False}
    assert next(finding["ms_per_step"] for finding in findings if finding["line"] == 12) > 0


def test_measured_milliseconds_decide_the_order():
    keep(observation(syncs=syncs((12, 0.5), (11, 4.0))))
    assert places(scan("train.py", *SYNCS, "--with-profile")[1]) == ["11", "12", "20"]
    assert "0.50 ms a step" in scan("train.py", *SYNCS, "--with-profile", "--format", "markdown")[1]


def test_without_following_nothing_is_said_about_what_did_not_run():
    keep(observation(syncs=syncs((12, 0.5))))
    text = scan("train.py", *SYNCS, "--with-profile")[1]
    assert "lines were not followed" in text
    assert "did not run" not in text


def test_what_workers_load_may_run_without_being_followed():
    keep(observation(followed=followed([5, 6, 12], [11])))
    assert scan("train.py", *SYNCS, "--with-profile")[1].count("did not run") == 2
    keep(observation(followed=followed([5, 6, 12], [11]), loaders=(loader(workers=2),)), "20261119-130000-train")
    assert scan("train.py", *SYNCS, "--with-profile")[1].count("did not run") == 1


def test_what_is_made_before_the_steps_is_not_called_unused():
    keep(observation(followed=followed([5, 6, 12], [11, 25])))
    finding = json.loads(scan("train.py", "--select", "C106", "--with-profile", "--format", "json")[1])["findings"]
    assert [made["ran"] for made in finding] == [None] * len(finding)


def test_a_file_that_changed_since_is_not_compared():
    keep(observation(syncs=syncs((12, 0.5)), followed=followed([12], [11])))
    os.utime("train.py", (time.time() + 60,) * 2)
    text = scan("train.py", *SYNCS, "--with-profile")[1]
    assert "Changed since, so not compared: train.py" in text
    assert "did not run" not in text
    assert "0.50 ms a step" not in text


def test_the_run_is_the_newest_or_the_one_named_and_a_path_after_the_option_is_a_path():
    keep(observation(syncs=syncs((12, 0.5))))
    keep(observation(syncs=syncs((11, 0.5))), "20261119-130000-train")
    assert places(scan("train.py", *SYNCS, "--with-profile")[1])[0] == "11"
    assert places(scan("train.py", *SYNCS, "--with-profile", "20261119-12")[1])[0] == "12"
    assert places(scan(*SYNCS, "--with-profile", "train.py")[1])[0] == "11"


def test_what_hotlap_run_gained_ranks_findings_too(project):
    trial = BlockTrial(
        names=("fused-optimizer",), on_top_of=(), at_step=10, without=(0.012, 0.012), with_=(0.010, 0.010), ratio=1.2,
        low=1.1, high=1.3, kept=True, cost=0.0, why="",
    )  # fmt: skip
    decided = Decisions(
        schema=SCHEMA, pid=7, on=("fused-optimizer",), tried=(trial,), after=0.01, ratio=1.2, remembered=False,
        is_main=True, steps=400, seconds=4.0, spent=0.1, is_over=True,
    )  # fmt: skip
    store.Run(store.prepare(store.home(), "runs/20261119-140000-train/running")).save("decisions-7", decided)
    (project / "train.py").write_text(PROGRAM.replace("SGD", "AdamW"))
    text = scan("train.py", "--with-profile", "20261119-14")[1]
    assert text.splitlines()[1].startswith("C106 fused-optimizer")
    assert "hotlap run gained 2.0 ms a step by it" in text


def test_a_repair_moves_lines_so_it_is_refused_with_a_profile():
    assert "--with-profile excludes --fix" in scan("train.py", "--fix", "--with-profile")[1]


def test_without_any_run_the_error_says_how_to_make_one():
    code, text = scan("train.py", "--with-profile")
    assert code != 0
    assert "hotlap profile python train.py" in text
