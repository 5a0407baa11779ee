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
    """Make a folder for PYTHONPATH: hotlap with these entries alone."""
    own = Path(hotlap.__file__).parent
    made = folder / "hotlap"
    (made / "catalog").mkdir(parents=True)
    for entry in own.iterdir():
        if entry.name not in ("catalog", "__pycache__"):
            (made / entry.name).symlink_to(entry)
    for entry in (own / "catalog").iterdir():
        if entry.is_file():
            (made / "catalog" / entry.name).symlink_to(entry)
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
    """Run a tune with these changes and return its record."""
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
    """Return by name whether a change is kept, how fast it looked, and why not."""
    kept_names = {item["name"] for item in record["kept"]}
    found: dict[str, dict[str, Any]] = {}
    alone = {
        item["name"]: [new["name"] for new in item["new"]] for item in record["trials"] if item["stage"] == "lasting"
    }
    for verdict in record["verdicts"]:
        fell = alone.get(verdict["trial"], []) if verdict["decision"] != "keep" else []
        entry = verdict["entry"] or (fell[0] if fell else None)
        if entry is None:
            continue
        failed = [item["name"] for item in (verdict["gate"] or {}).get("checks", ()) if item["passed"] is False]
        speed = verdict["speed"]["ratio"] if verdict["speed"] else None
        known = found.setdefault(entry, {"looked": speed})
        known |= {"kept": entry in kept_names, "stage": verdict["stage"], "failed": failed, "why": verdict["why"]}
    return found


def main() -> None:
    wanted = sys.argv[2:] or [*AT_ONCE, *LATER]
    at_once = [name for name in AT_ONCE if name in wanted]
    report: dict[str, Any] = {"at once": outcome(tune([HARMLESS, *at_once])), "later": {}, "by class": {}}
    for name in LATER:
        if name in wanted:
            report["later"] |= outcome(tune([name], batches=300))
    for risk, names in BY_CLASS.items() if not sys.argv[2:] else ():
        report["by class"][risk] = outcome(tune([HARMLESS, *names], risk))
    harmful = [verdict for name, verdict in _all(report) if name != HARMLESS]
    report["harmful"], report["harmful kept"] = len(harmful), sum(verdict["kept"] for verdict in harmful)
    report["harmless kept"] = sum(verdict["kept"] for name, verdict in _all(report) if name == HARMLESS)
    report |= {"machine": machine(), "date": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n")
    for name, verdict in _all(report):
        print(f"{'kept    ' if verdict['kept'] else 'not kept'} {name}: {verdict['why']}")
    print(f"{report['harmful kept']} of {report['harmful']} harmful changes kept")


def _all(report: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    groups = [report["at once"], report["later"], *report["by class"].values()]
    return [pair for group in groups for pair in group.items()]


if __name__ == "__main__":
    main()
