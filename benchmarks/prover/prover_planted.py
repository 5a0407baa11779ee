"""Harmful changes through the real tuner: each makes the training faster, and none may be kept.

A copy of hotlap is made whose catalogue has the changes of planted/harm.py and nothing else, and `hotlap tune` is run
with it on planted/train.py, in forks of a process that has torch imported. Those whose harm shows at once are tried in
one tune, beside one that does none and must be kept; those whose harm comes later have a tune each, because only what
has come through all else gets that far.

python benchmarks/prover/prover_planted.py OUTPUT.json [NAME …]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from prover_noise import machine

import hotlap

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from warm import warmed

HERE = Path(__file__).parent / "planted"
HARMLESS = "harmless"
AT_ONCE = (
    "zeros-saved", "key-dropped", "file-missing", "file-elsewhere", "text-changed", "evaluation-constant",
    "evaluation-cut", "metric-doubled", "prints-lost", "errors-lost", "words-changed", "exit-code", "memory-grows",
    "memory-held", "unused-weight", "momentum-zeroed", "stream-advanced", "last-batch", "last-step", "batchnorm-stale",
    "average-stale", "schedule-skipped", "files-left-open", "weight-frozen", "signal-ignored", "process-left",
    "mode-changed",
)  # fmt: skip
LATER = ("slow-later", "loss-later", "memory-grows-later")
BY_CLASS = {
    "rounding": ("zeros-saved", "key-dropped", "evaluation-constant", "file-missing", "words-changed", "unused-weight",
                 "average-stale", "stream-advanced", "memory-grows"),
    "numeric": ("zeros-saved", "evaluation-constant", "file-elsewhere", "prints-lost", "batchnorm-stale",
                "average-stale", "momentum-zeroed"),
}  # fmt: skip
ENTRY = """
from functools import partial
from hotlap.catalog.entry import Entry
from hotlap.catalog.planted_harm import apply
from hotlap.records.plan import Expectation, Risk

ENTRY = Entry(
    code="X{number:03d}", title="planted", risk=Risk("{risk}"), apply=partial(apply, "{name}"),
    detect=lambda seen: Expectation(most=0.5, why="planted"), automatic=False,
)
"""


def plant(folder: Path, names: Sequence[str], risk: str = "exact") -> Path:
    """A folder for PYTHONPATH: hotlap with these entries alone."""
    own = Path(hotlap.__file__).parent
    made = folder / "hotlap"
    (made / "catalog").mkdir(parents=True)
    for one in own.iterdir():
        if one.name not in ("catalog", "__pycache__"):
            (made / one.name).symlink_to(one)
    for one in (own / "catalog").iterdir():
        if one.is_file():
            (made / "catalog" / one.name).symlink_to(one)
    (made / "catalog" / "planted_harm.py").symlink_to(HERE / "harm.py")
    for number, name in enumerate(names, start=1):
        package = made / "catalog" / name.replace("-", "_")
        package.mkdir()
        (package / "__init__.py").write_text(ENTRY.format(name=name, number=number, risk=risk))
    return folder


def tune(
    names: Sequence[str],
    risk: str = "exact",
    batches: int = 15,
    budget: str = "15m",
    steps: int = 40,
    epochs: int = 100,
) -> dict[str, Any]:
    """The record of a tune with these changes."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        planted, work = plant(folder / "planted", names, risk), folder / "work"
        work.mkdir()
        length = [str(batches), str(epochs)]
        words = ["tune", "--budget", budget, "--steps", str(steps), "--risk", risk, "--run-dir", str(folder / "runs")]
        ran = subprocess.run(
            [sys.executable, "-m", "hotlap", *words, *warmed([sys.executable, str(HERE / "train.py"), *length])],
            cwd=work,
            env={**os.environ, "PYTHONPATH": str(planted), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if ran.returncode:
            raise RuntimeError(ran.stderr)
        assert not any(work.iterdir()), "a trial wrote to the folder of the training"
        (record,) = (folder / "runs" / "runs").glob("*/tuning.json")
        return json.loads(record.read_text())


def outcome(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By name: whether it is kept, how fast it looked, and why not."""
    kept = {one["name"] for one in record["kept"]}
    found: dict[str, dict[str, Any]] = {}
    alone = {one["name"]: [new["name"] for new in one["new"]] for one in record["trials"] if one["stage"] == "lasting"}
    for verdict in record["verdicts"]:
        fell = alone.get(verdict["trial"], []) if verdict["decision"] != "keep" else []
        entry = verdict["entry"] or (fell[0] if fell else None)
        if entry is None:
            continue
        failed = [one["name"] for one in (verdict["gate"] or {}).get("checks", ()) if one["passed"] is False]
        speed = verdict["speed"]["ratio"] if verdict["speed"] else None
        known = found.setdefault(entry, {"looked": speed})
        known |= {"kept": entry in kept, "stage": verdict["stage"], "failed": failed, "why": verdict["why"]}
    return found


def main() -> None:
    wanted = sys.argv[2:] or [*AT_ONCE, *LATER]
    at_once = [name for name in AT_ONCE if name in wanted]
    told: dict[str, Any] = {"at once": outcome(tune([HARMLESS, *at_once])), "later": {}, "by class": {}}
    for name in LATER:
        if name in wanted:
            told["later"] |= outcome(tune([name], batches=300))
    for risk, names in BY_CLASS.items() if not sys.argv[2:] else ():
        told["by class"][risk] = outcome(tune([HARMLESS, *names], risk))
    harmful = [one for name, one in _all(told) if name != HARMLESS]
    told["harmful"], told["harmful kept"] = len(harmful), sum(one["kept"] for one in harmful)
    told["harmless kept"] = sum(one["kept"] for name, one in _all(told) if name == HARMLESS)
    told |= {"machine": machine(), "date": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    Path(sys.argv[1]).write_text(json.dumps(told, indent=1) + "\n")
    for name, one in _all(told):
        print(f"{'kept    ' if one['kept'] else 'not kept'} {name}: {one['why']}")
    print(f"{told['harmful kept']} of {told['harmful']} harmful changes kept")


def _all(told: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    groups = [told["at once"], told["later"], *told["by class"].values()]
    return [pair for group in groups for pair in group.items()]


if __name__ == "__main__":
    main()
