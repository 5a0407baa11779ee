"""hotlap runs: the saved runs of a project, the newest first, each with its result in one line."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hotlap import store
from hotlap.cli.report import RunRecords, records
from hotlap.cli.verbs import GROUPS
from hotlap.errors import HotlapError, RunNotFound
from hotlap.records.visible import visible
from hotlap.report import shortly

RUN, PROFILE, TUNE, COMPARE = VERBS = ("run", "profile", "tune", "compare")
EXAMPLES = {name: verb.example for group in GROUPS.values() for name, verb in group.items()}
SHOWN = 20
NOTHING = "nothing to show: it ended too early"


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedRun:
    run: str  # id
    verb: str
    started: str  # ISO 8601
    result: str
    folder: str


@click.command(context_settings={"show_default": True})
@click.option("--verb", type=click.Choice(VERBS), help="List only the runs of this verb.  [default: all]")
@click.option("--last", type=click.IntRange(1), metavar="N", default=SHOWN, help="List the last N runs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Find runs here.  [default: the project's state folder]"
)
def runs(verb: str | None, last: int, as_json: bool, run_dir: Path | None) -> int:
    """List the saved runs of this project, the newest first."""
    found = [run for run in reversed(store.every(run_dir)) if verb in (None, _verb(run))]
    listed = [_listed(run) for run in found[:last]]
    if as_json:
        click.echo(json.dumps([asdict(run) for run in listed], indent=2, ensure_ascii=False))
    elif not listed:
        kind = f" of hotlap {verb}" if verb else ""
        raise RunNotFound(f"no run{kind} in {run_dir or store.home()}; make one: {EXAMPLES[verb or RUN]}")
    else:
        _draw(listed, len(found) - len(listed))
    return 0


def _verb(run: store.Run) -> str:
    if (run.folder / "comparison.json").exists():
        return COMPARE
    if any((run.folder / f"{name}.json").exists() for name in ("tuning", "asked")):
        return TUNE
    return RUN if (run.folder / "running").is_dir() else PROFILE


def _listed(run: store.Run) -> ListedRun:
    return ListedRun(
        run=run.id, verb=_verb(run), started=_started(run), result=visible(_result(run)), folder=str(run.folder)
    )


def _started(run: store.Run) -> str:
    """Return when the run was made, which its id begins with, in UTC; a folder of another name has no time."""
    stamp = re.match(r"\d{8}-\d{6}", run.id)
    if stamp is None:
        return ""
    return datetime.strptime(stamp[0], "%Y%m%d-%H%M%S").replace(tzinfo=timezone.utc).isoformat()


def _result(run: store.Run) -> str:
    try:
        return _in_short(records(run))
    except RunNotFound:
        return NOTHING
    except HotlapError as error:
        return str(error)


def _in_short(loaded: RunRecords) -> str:
    if loaded.comparison is not None:
        return shortly.compared(loaded.comparison)
    if loaded.tuning is not None:
        return shortly.tuned(loaded.tuning)
    if loaded.decisions is not None:
        return shortly.decided(loaded.decisions)
    return shortly.profiled(loaded.diagnosis) if loaded.diagnosis is not None else ""


def _draw(listed: list[ListedRun], older: int) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "verb", "when"):
        table.add_column(heading, no_wrap=True)
    table.add_column("result", overflow="fold")
    for run in listed:
        table.add_row(Text(visible(run.run)), run.verb, _ago(run.started), Text(run.result))
    console = Console(highlight=False)
    console.print(table)
    more = f"{older} older: hotlap runs --last {older + len(listed)} · " if older else ""
    shown = next((run.run for run in listed if run.result != NOTHING), None)
    example = f"one of them: hotlap show {visible(shown)}" if shown else "make one that has a result: hotlap profile …"
    console.print(Text(f"{more}{example}", "dim"), soft_wrap=True)


def _ago(started: str) -> str:
    if not started:
        return ""
    minutes = (datetime.now(timezone.utc) - datetime.fromisoformat(started)).total_seconds() / 60
    if minutes < 1:
        return "now"
    if minutes < 90:
        return f"{minutes:.0f} min ago"
    return f"{minutes / 60:.0f} h ago" if minutes < 48 * 60 else f"{minutes / 1440:.0f} days ago"
