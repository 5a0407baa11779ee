"""What engine_start.py and engine_files.py share: fresh processes, by turns, with every sample saved."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hotlap.bench import data, workloads
from hotlap.bench.surroundings import look
from hotlap.judge.ratio import Work, ratio

ROOT = Path(__file__).resolve().parents[2]
SLOW, FAST = "naive", "engine"
ASKED = 10.0  # times faster


@contextmanager
def modules_of(workload: str) -> Any:
    """Import the modules of a workload by plain names within the block, as its scripts do."""
    before = list(sys.path)
    sys.path[:0] = [str(workloads.folder() / workload), str(ROOT)]
    try:
        yield
    finally:
        sys.path[:] = before


def data_folder(workload: str, size: str) -> Path:
    """Return the workload's data, made before anything is timed."""
    return data.make(workloads.folder(), workload, size, lambda name, seconds: None)


def in_a_process(script: str, words: Sequence[str], environment: dict[str, str]) -> dict[str, Any]:
    """Return what the script prints last, as JSON; it gets its start time on the clock that all processes share."""
    command = [sys.executable, script, *words, "--began", repr(time.monotonic())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def by_turns(rounds: range) -> list[tuple[int, str]]:
    """Yield A B, then B A, so that a drift of the machine hits both alike."""
    order = [(SLOW, FAST), (FAST, SLOW)]
    return [(number, arm) for number in rounds for arm in order[number % 2]]


class Record:
    """The file of a benchmark, rewritten after every sample; an existing file is continued."""

    def __init__(self, path: Path | None, benchmark: str, size: str, device: str | None) -> None:
        here, self.device = look(device)
        self.path = path
        self.content: dict[str, Any] = {
            "schema": 1,
            "benchmark": benchmark,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": f"python benchmarks/engine/{Path(sys.argv[0]).name} --size {size} --device {self.device}",
            "machine": asdict(here.machine),
            "versions": dict(here.versions),
            "size": size,
            "device": self.device,
            "asked_times_faster": ASKED,
            "samples": [],
        }
        if path is not None and path.exists():
            self._go_on(json.loads(path.read_text(encoding="utf-8")), path)

    def _go_on(self, found: dict[str, Any], path: Path) -> None:
        for name in ("benchmark", "size", "device", "machine", "versions"):
            if found[name] != json.loads(json.dumps(self.content[name])):
                sys.exit(f"{path} holds another {name}; choose another --out to start over")
        self.content["samples"] = found["samples"]

    @property
    def samples(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.content["samples"]
        return found

    def rounds(self, count: int) -> range:
        """Return the numbers of this many more rounds."""
        first = 1 + max((sample["round"] for sample in self.samples), default=-1)
        return range(first, first + count)

    def add(self, sample: dict[str, Any]) -> None:
        self.samples.append(sample)
        self.content["summary"] = self.summary()
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")

    def summary(self) -> dict[str, Any] | None:
        """Return median seconds of both arms, the factor with its 95 % interval, and whether the results are alike."""
        seconds = {arm: [sample["seconds"] for sample in self.samples if sample["arm"] == arm] for arm in (SLOW, FAST)}
        if not all(seconds.values()):
            return None
        runs = {
            arm: [[Work(samples=1, seconds=sample) for sample in run] for run in found]
            for arm, found in seconds.items()
        }
        faster = ratio(runs[FAST], runs[SLOW])
        middle = {arm: statistics.median(sample for run in found for sample in run) for arm, found in seconds.items()}
        alike = len({json.dumps(sample["result"]) for sample in self.samples}) == 1
        return {"seconds": middle, "times_faster": asdict(faster), "results_alike": alike}

    def summary_line(self) -> str:
        found = self.content.get("summary")
        if found is None:
            return "nothing to compare yet"
        faster = found["times_faster"]
        span = "" if faster["low"] is None else f" [{faster['low']:.3g}, {faster['high']:.3g}]"
        alike = "same results" if found["results_alike"] else "results DIFFER"
        slow, fast = (found["seconds"][arm] for arm in (SLOW, FAST))
        return f"naive {slow:.4g} s, engine {fast:.4g} s: {faster['value']:.3g}x{span} (asked: {ASKED:g}x), {alike}"
