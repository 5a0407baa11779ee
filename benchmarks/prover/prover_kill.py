"""Is anything lost to kill -9, and does a resumed tune end with the same plan? `prover_kill.py --out FILE`

Tunes of prover_sleeper.py are killed at random moments, from observing to the last trial, and resumed by `hotlap
tune --resume`, which is killed at random moments in its turn, until there were enough kills; the last one runs to its
end. Another tune, which nobody kills, shows what the plan should be. All processes are real. The script sleeps for
its data, so that the same plan is a fair demand on a busy machine: no speed of it is near the smallest that counts.

For each kill: what was under way, that no process outlived it, and that every sample recorded before it is in the
record at the end, bit by bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
from prover_noise import machine

SCRIPT = Path(__file__).with_name("prover_sleeper.py")
TUNE = ("--budget", "60m", "--risk", "exact", "--steps", "30", "--min-effect", "30%")
WAIT = 5.0  # seconds in which what was started must be gone
POLL = 0.02


def tune(home: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hotlap", "tune", "--run-dir", str(home), "--quiet", *words]
    return subprocess.Popen(command, cwd=SCRIPT.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def begin(home: Path, resume: bool) -> subprocess.Popen[bytes]:
    return tune(home, "--resume") if resume else tune(home, *TUNE, sys.executable, SCRIPT.name)


def loaded(home: Path, name: str) -> dict[str, Any] | None:
    """Load the newest record of that name."""
    for path in sorted(home.glob(f"runs/*/{name}.json"), reverse=True):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    return None


def is_begun(home: Path) -> bool:
    return any(home.glob("runs/*/asked.json")) or any(home.glob("runs/*/tuning.json"))


def samples(record: dict[str, Any] | None) -> dict[str, list[Any]]:
    return {trial["name"]: trial["samples"] for trial in (record or {}).get("trials", ())}


def plan(home: Path) -> list[Any]:
    (path,) = home.glob("plans/*.json")
    found: list[Any] = json.loads(path.read_text(encoding="utf-8"))["choices"]
    return found


def under_way(record: dict[str, Any] | None) -> str:
    """Return what the next process would have been part of: the trial recorded last."""
    if record is None:
        return "observing"
    if record["finished"]:
        return "finished"
    return str(record["trials"][-1]["name"]) if record["trials"] else "before the first trial"


def kill(process: subprocess.Popen[bytes], home: Path) -> dict[str, Any]:
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=WAIT)
    record = loaded(home, "tuning")
    counted = sum(len(samples_of_trial) for samples_of_trial in samples(record).values())
    return {
        "under_way": under_way(record),
        "recorded_samples": counted,
        "processes_at_the_kill": 1 + len(family),
        "processes_left": len(alive),
        "record": record,
    }


def killed_tune(home: Path, chance: random.Random, longest: float, most: int) -> dict[str, Any]:
    """Run a tune to its end, killed up to so often on the way."""
    kills: list[dict[str, Any]] = []
    process, began = begin(home, resume=False), time.monotonic()
    while len(kills) < most:
        after = chance.uniform(0.0, longest)
        if not _waited(process, home, after):
            break
        found = kill(process, home)
        kills.append({"seconds_into_the_tune": round(time.monotonic() - began, 2), **found})
        process = begin(home, resume=True)
    code = process.wait()
    return {
        "exit_code": code,
        "kills": kills,
        "record": loaded(home, "tuning"),
        "plan": plan(home) if not code else None,
    }


def _waited(process: subprocess.Popen[bytes], home: Path, seconds: float) -> bool:
    """Wait from the moment the folder exists; return False if the tune ended first."""
    while process.poll() is None and not is_begun(home):
        time.sleep(POLL)
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        time.sleep(POLL)
    return process.poll() is None


def lost(found: dict[str, Any], end: dict[str, Any] | None) -> int:
    """Count the samples that were recorded at a kill and are missing from the record at the end."""
    after = samples(end)
    return sum(
        sample not in after.get(name, ())[: len(some)]
        for name, some in samples(found["record"]).items()
        for sample in some
    )


def row(found: dict[str, Any], expected: Sequence[Any]) -> dict[str, Any]:
    end = found["record"]
    kills = [
        {
            **{key: value for key, value in kill_record.items() if key != "record"},
            "samples_lost": lost(kill_record, end),
        }
        for kill_record in found["kills"]
    ]
    same = found["plan"] == list(expected)
    print(
        f"{len(kills)} kills, exit code {found['exit_code']}, {'the same plan' if same else found['plan']}", flush=True
    )
    for kill_record in kills:
        print(f"  {kill_record}", flush=True)
    counted = {name: len(some) for name, some in samples(end).items()}
    return {
        "exit_code": found["exit_code"],
        "same_plan": same,
        "plan": found["plan"],
        "samples": counted,
        "kills": kills,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--longest", type=float, default=60.0, help="seconds from a start to the next kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        whole = begin(Path(place) / "whole", resume=False)
        found: list[dict[str, Any]] = []
        while (left := options.kills - sum(len(item["kills"]) for item in found)) > 0:
            found.append(killed_tune(Path(place) / str(len(found)), chance, options.longest, left))
            print(f"{len(found[-1]['kills'])} kills, exit code {found[-1]['exit_code']}", flush=True)
        if whole.wait():
            sys.exit("the tune that was never killed failed")
        expected = plan(Path(place) / "whole")
    print(f"the tune that was never killed keeps {expected}", flush=True)
    tunes = [row(item, expected) for item in found]
    kills = [item for tune in tunes for item in tune["kills"]]
    result = {
        "benchmark": "prover-kill",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "script": SCRIPT.name,
        "options": TUNE,
        "seed": options.seed,
        "longest_wait_seconds": options.longest,
        "expected_plan": expected,
        "kills": len(kills),
        "tunes_with_the_same_plan": sum(item["same_plan"] for item in tunes),
        "samples_lost": sum(item["samples_lost"] for item in kills),
        "processes_left": sum(item["processes_left"] for item in kills),
        "tunes": tunes,
    }
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result) + "\n", encoding="utf-8")
    right = result["tunes_with_the_same_plan"] == len(tunes) and not result["samples_lost"] + result["processes_left"]
    print(f"{len(kills)} kills in {len(tunes)} tunes: {'nothing lost, the same plan' if right else 'WRONG'}")
    sys.exit(not right)


if __name__ == "__main__":
    main()
