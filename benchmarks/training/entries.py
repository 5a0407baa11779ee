"""Each optimisation of the plan `fast` alone, on the five workloads: is any of them slower than doing without?

`python benchmarks/training/entries.py [WORKLOAD…] [--size small] [--rounds 4] [--device cpu] --out FILE`

First one process of each workload with the whole plan, which tells what applies there. Then rounds: in each, in its own
order, the naive script without hotlap's entries, once more so (the noise), with each entry that applies, and with
all of them, every time in a fresh process of about `SECONDS` of training. Steps are timed as in `hotlap tune`, with its
runner; ratios and intervals are its judge's. An entry is slower where its whole 95 % interval is below 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import hotlap
from hotlap.bench import workloads
from hotlap.judge.ratio import Work, ratio
from hotlap.plan.choose import automatic
from hotlap.records.plan import Choice, Risk
from hotlap.records.trial import EndReason, Sample
from hotlap.trial.local import LocalRunner
from hotlap.trial.runner import BASE, NEW, Spec

SECONDS = 5.0  # of training a process
FEWEST, MOST = 24, 4000  # steps
PROCESS = 600.0  # seconds for a whole process, at most
NOISE, WHOLE = "noise", "all together"

Arms = dict[str, tuple[Choice, ...]]


class Workload:
    def __init__(self, name: str, size: str, device: str, folder: Path) -> None:
        self.name = name
        script = workloads.script(workloads.folder(), name, "naive")
        arguments = ("--size", size, "--seed", "0", "--device", device, "--out", str(folder / name))
        self._runner = LocalRunner((sys.executable, *script, *arguments), folder, 1.0)
        self._count = 0

    def run(self, arm: str, choices: tuple[Choice, ...], steps: int) -> Sample:
        self._count += 1
        spec = Spec(
            number=self._count,
            arm=NEW if choices else BASE,
            choices=choices,
            seed_shift=0,
            steps=steps,
            least=FEWEST // 2,
            seconds=PROCESS,
        )
        sample = self._runner.run(spec)
        if sample.ended != EndReason.MEASURED:
            sys.exit(f"{self.name}, {arm}: {sample.ended} ({sample.why})")
        return sample


def arms_of(workload: Workload) -> tuple[Arms, int]:
    """Return what applies to a workload, and how many steps take about SECONDS without it."""
    plan = automatic(Risk.ROUNDING).choices
    statuses = {outcome.name: outcome.status for outcome in workload.run(WHOLE, plan, FEWEST * 4).outcomes}
    applied = tuple(choice for choice in plan if statuses.get(choice.name) == "applied")
    blocks = workload.run(BASE, (), FEWEST * 4).blocks
    step = sum(block.seconds for block in blocks) / sum(block.steps for block in blocks)
    alone = {choice.name: (choice,) for choice in applied}
    return {BASE: (), NOISE: (), **alone, WHOLE: applied}, max(FEWEST, min(MOST, round(SECONDS / step)))


def compared(workload: Workload, rounds: int) -> dict[str, Any]:
    arms, steps = arms_of(workload)
    samples: dict[str, list[Sample]] = {arm: [] for arm in arms}
    for number in range(rounds):
        for arm in random.Random(number).sample(sorted(arms), len(arms)):
            samples[arm].append(workload.run(arm, arms[arm], steps))
        print(f"{workload.name}: round {number + 1} of {rounds}, {len(arms)} arms, {steps} steps each", flush=True)
    found = {arm: asdict(ratio(worked(samples[arm]), worked(samples[BASE]))) for arm in arms if arm != BASE}
    for arm, figure in found.items():
        print(f"  {arm:22} {figure['value']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]{said(figure)}", flush=True)
    raw = {arm: [[asdict(block) for block in sample.blocks] for sample in samples[arm]] for arm in arms}
    return {"steps": steps, "ratios": found, "blocks": raw}


def said(figure: dict[str, Any]) -> str:
    return "  SLOWER" if figure["high"] < 1 else "  faster" if figure["low"] > 1 else ""


def worked(samples: list[Sample]) -> list[list[Work]]:
    return [[Work(samples=block.samples, seconds=block.seconds) for block in sample.blocks] for sample in samples]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--size", default="small")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    names = workloads.chosen("workload", arguments.workloads, workloads.names(workloads.folder()))
    cases: dict[str, Any] = json.loads(arguments.out.read_text())["workloads"] if arguments.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names or workloads.names(workloads.folder()):
            workload = Workload(name, arguments.size, arguments.device, Path(folder))
            cases[name] = compared(workload, arguments.rounds)
            keep(arguments, cases)


def keep(arguments: argparse.Namespace, cases: dict[str, Any]) -> None:
    record = {
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "hotlap": hotlap.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "device": arguments.device,
        "size": arguments.size,
        "workloads": cases,
    }
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
