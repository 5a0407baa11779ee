"""Harmful changes must not pass the gates, harmless ones must: `python benchmarks/prover/prover_harm.py --out FILE`.

Each change is planted into training of a workload's learnable task at `tiny` (prover_tasks.py, prover_changes.py) and
judged as `hotlap tune` would: the baseline twice with the seed as written and three times with its weights nudged, then
both arms with three seeds. The file holds every loss.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import prover_changes as changes
import prover_tasks as tasks
import torch
from prover_changes import Training
from prover_noise import machine
from prover_records import noise_trial, sample, trial
from prover_tasks import Task

from hotlap.judge.gates import gate
from hotlap.records.plan import Risk
from hotlap.records.verdict import Gate

STEPS = {"battery_fnn": 240, "bloom": 160, "leak": 48, "banknotes": 32}
SEEDS = (0, 1, 2)
NUDGED = (1, 2, 3)
BASELINES: list[dict[str, Any]] = []  # every run of a task as it is, for the file


@dataclass(frozen=True)
class Case:
    title: str
    change: type[Training]
    task: Task
    risk: Risk = Risk.ROUNDING


def harmful() -> list[Case]:
    """Return harmful changes in the order of the issue. All but the one of lower precision pretend to be rounding."""
    fnn, bloom, leak, notes = tasks.battery_fnn(), tasks.bloom(), tasks.leak(), tasks.banknotes()
    general = (fnn, bloom, leak)
    return [
        *_on(general, "gradients dropped every 10th step", changes.DroppedGradients),
        Case("fp16 without scaling", changes.HalfWithoutScaling, fnn, Risk.NUMERIC),
        Case("fp16 without scaling", changes.HalfWithoutScaling, bloom, Risk.NUMERIC),
        *_on((fnn, bloom), "learning rate lost after a rebuild", changes.RateLostInRebuild),
        *_on(general, "shuffling broken", changes.BrokenShuffling),
        *_on(general, "stale batch from a reused buffer", changes.StaleBatch),
        Case("wrong loss scale", changes.WrongLossScale, fnn),
        *_on(
            (tasks.with_accumulation(fnn, 4), tasks.with_accumulation(bloom, 3)),
            "tail of accumulation dropped",
            changes.AccumulationTailDropped,
        ),
        Case("BatchNorm frozen", changes.FrozenBatchNorm, notes),
        Case("dropout off", changes.DropoutOff, tasks.with_dropout(leak)),
        Case("weight decay lost", changes.WeightDecayLost, tasks.with_weight_decay(fnn, 0.1)),
        Case("weight decay lost", changes.WeightDecayLost, tasks.with_weight_decay(bloom, 0.1)),
        Case("labels cast", changes.LabelsCast, fnn),
        *_on(general, "optimizer state reset", changes.OptimizerStateReset),
    ]


def harmless() -> list[Case]:
    fnn, bloom, leak = tasks.battery_fnn(), tasks.bloom(), tasks.leak()
    return [
        *_on((fnn, bloom, leak, tasks.banknotes()), "fused optimizer", changes.FusedOptimizer),
        *_on((fnn, bloom, leak), "foreach optimizer", changes.ForeachOptimizer),
        *_on((fnn, bloom, leak), "samples of a batch summed the other way round", changes.OtherSummationOrder),
        *_on((fnn, bloom, leak), "batch in two halves", changes.BatchInTwoHalves),
        Case("channels last", changes.ChannelsLast, leak),
        Case("bfloat16", changes.Bfloat16, bloom, Risk.NUMERIC),
    ]


def out_of_reach() -> list[Case]:
    """Return what the gates cannot detect over so few steps, stated and not hidden.

    Two faults whose effect is smaller than what rounding or the margin allows, and a harmless change where three seeds
    differ too much for anything to be proven of it.
    """
    half = changes.HalfLayersWithoutScaling
    return [
        Case("weight decay of 0.01 lost", changes.WeightDecayLost, tasks.leak()),
        Case("float16 between the layers only, without scaling", half, tasks.bloom(), Risk.NUMERIC),
        Case("bfloat16", changes.Bfloat16, tasks.battery_fnn(), Risk.NUMERIC),
    ]


def _on(some: Iterable[Task], title: str, change: type[Training]) -> list[Case]:
    return [Case(title, change, task) for task in some]


def judged(case: Case, seeds: tuple[int, ...] = SEEDS, steps: int | None = None) -> tuple[Gate, dict[int, list[float]]]:
    steps = steps or STEPS[case.task.name]
    base = {seed: baseline(case.task, seed, 0, steps) for seed in seeds}
    new = {seed: case.change(case.task, seed).losses(steps) for seed in seeds}
    nudged = {number: baseline(case.task, 0, number, steps) for number in NUDGED}
    again = baseline(case.task, 0, -1, steps)
    noise = noise_trial(
        [sample(losses=base[0]), sample(losses=again)],
        [sample(losses=losses, nudge=changes.NUDGE) for losses in nudged.values()],
    )
    both = [sample(losses=base[seed], seed=seed) for seed in seeds]
    both += [sample("new", losses=new[seed], seed=seed) for seed in seeds]
    return gate(trial(both, case.risk), noise, None), new


@cache
def baseline(task: Task, seed: int, nudge: int, steps: int) -> list[float]:
    """Run the baseline, which serves every change to a task; nudge -1 is a second, unchanged run."""
    found = Training(task, seed, max(nudge, 0)).losses(steps)
    what = {"workload": task.name, "added": task.added, "seed": seed, "nudged": max(nudge, 0), "losses": found}
    BASELINES.append(what)
    return found


def row(case: Case, wanted: bool | None) -> dict[str, Any]:
    began = time.perf_counter()
    found, losses = judged(case)
    right = wanted is None or found.passed is wanted
    print(
        f"{'' if right else 'WRONG  '}{case.title:46} {case.task.name:12} {case.risk:9} "
        f"{ {True: 'kept', False: 'rejected', None: 'no evidence'}[found.passed]:12} {found.why}",
        flush=True,
    )
    return {
        "change": case.title, "workload": case.task.name, "added": case.task.added, "risk": case.risk,
        "passed": found.passed, "rule": found.rule, "why": found.why, "figures": dict(found.figures),
        "as it should be": None if wanted is None else right, "seconds": round(time.perf_counter() - began, 1),
        "losses_by_seed": losses,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "benchmark": "prover-harm",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "harmful": [row(case, False) for case in harmful()],
        "harmless": [row(case, True) for case in harmless()],
        "out of reach": [row(case, None) for case in out_of_reach()],
        "baselines": BASELINES,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(_short(result)) + "\n", encoding="utf-8")
    wrong = [row for kind in ("harmful", "harmless") for row in result[kind] if not row["as it should be"]]
    kinds = len({row["change"] for row in result["harmful"]})
    cases = f"{len(result['harmful'])} cases, {len(result['harmless'])} harmless"
    print(f"{kinds} kinds of harm in {cases}; {len(wrong)} wrong")
    sys.exit(bool(wrong))


def _short(value: Any) -> Any:
    """Round to seven digits, which is what float32 holds."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
