"""hotlap scan --with-profile: which run to join, and the findings with what it measured."""

from __future__ import annotations

from pathlib import Path

from hotlap import store
from hotlap.cli.report import records
from hotlap.errors import RunNotFound
from hotlap.records.scan_finding import Scan
from hotlap.store import Run
from hotlap.workflows.scan_profile import with_decisions, with_observation


def run_to_join(wanted: str, paths: tuple[str, ...]) -> tuple[Run, tuple[str, ...]]:
    """Return the run that --with-profile means and the paths to scan; a path after a bare option is one of these."""
    if wanted and not _names_a_run(wanted) and Path(wanted).exists():
        wanted, paths = "", (wanted, *paths)
    return (store.find(wanted) if wanted else _newest()), paths


def _names_a_run(wanted: str) -> bool:
    return any(Path(wanted).glob("*.json")) or any(run.id.startswith(wanted) for run in store.every())


def _newest() -> Run:
    for run in reversed(store.every()):
        if (run.folder / "observation.json").exists() or any(run.folder.glob("running/decisions-*.json")):
            return run
    raise RunNotFound(f"no run in {store.home()} has measured anything; make one: hotlap profile python train.py")


def measured(scan: Scan, run: Run) -> Scan:
    loaded = records(run)
    if loaded.observation is not None:
        return with_observation(scan, run, loaded.observation)
    if loaded.decisions is not None:
        return with_decisions(scan, run, loaded.decisions)
    raise RunNotFound(f"{run.id} measured no lines; choose a profile: hotlap runs --verb profile")
