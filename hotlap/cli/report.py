"""hotlap report [RUN]: the report of a tune, or the page of a profile, to read or to pass on."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console

from hotlap import report as drawing
from hotlap import store
from hotlap.errors import HotlapError, RecordUnreadable, RunFolderUnwritable, RunNotFound
from hotlap.patch.entry import DECISIONS, OUTCOMES
from hotlap.records import private
from hotlap.records.decisions import Decisions
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.observation import Observation
from hotlap.records.plan import Outcome, Outcomes
from hotlap.records.tune_record import TuneRecord
from hotlap.records.visible import visible
from hotlap.report.run import decisions as decided

HTML, MARKDOWN, JSON, TERMINAL = "html", "markdown", "json", "terminal"
SUFFIXES = {".html": HTML, ".htm": HTML, ".md": MARKDOWN, ".markdown": MARKDOWN, ".json": JSON}
STDOUT = Path("-")
PAGE = "report.html"  # in the run folder
Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecords:
    """The records of a run: a tuning, a profile alone, or what a training has decided."""

    run: store.Run
    tuning: TuneRecord | None
    observation: Observation | None
    diagnosis: Diagnosis | None
    decisions: Decisions | None = None
    outcomes: tuple[Outcome, ...] = ()


@click.command()
@click.argument("run", required=False)
@click.option(
    "--html", "as_html", is_flag=True, help=f"One HTML file, {PAGE} in the run folder unless --output is given."
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Markdown, for a pull request.")
@click.option("--json", "as_json", is_flag=True, help="JSON: the report and every record behind it.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write it here; - is the standard output. Its ending tells the format where none is named.",
)
@click.option("--open", "open_it", is_flag=True, help="Write the HTML file and open it in the browser.")
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Where runs are kept.  [default: the project's state folder]"
)
def report(
    run: str | None,
    as_html: bool,
    as_markdown: bool,
    as_json: bool,
    output: Path | None,
    open_it: bool,
    run_dir: Path | None,
) -> int:
    """Draw the report of a tune, or the page of a profile.

    RUN is an id, the start of one, or a folder; the newest when left out. Without a format it is shown here.
    """
    asked = [name for name, wanted in ((HTML, as_html), (MARKDOWN, as_markdown), (JSON, as_json)) if wanted]
    form = _format(asked, output, open_it)
    kept = records(store.find(run, run_dir))
    if form == TERMINAL:
        draw(kept)
        return 0
    to = output or (kept.run.folder / PAGE if form == HTML else STDOUT)
    text = render(kept, form)
    if to == STDOUT:
        click.echo(text, nl=False)
        return 0
    _write(to, text, kept_by_us=output is None)
    click.echo(visible(str(to)))
    if open_it:
        _open(to)
    return 0


def _format(asked: list[str], output: Path | None, open_it: bool) -> str:
    if len(asked) > 1:
        raise click.UsageError(f"--{asked[0]} and --{asked[1]} exclude each other; give one of them.")
    known = SUFFIXES.get(output.suffix.lower()) if output else None
    if output is not None and not asked and not open_it and known is None:
        raise click.UsageError(f"which format for {output}? Add --html, --markdown or --json.")
    form = asked[0] if asked else HTML if open_it else known or TERMINAL
    if open_it and (form != HTML or output == STDOUT):
        raise click.UsageError("--open opens an HTML file; leave out --markdown, --json and --output -.")
    return form


def records(run: store.Run) -> RunRecords:
    """What there is. A tune needs no profile beside it; a run with neither is no run to report on."""
    tuning = _load(run, "tuning", TuneRecord)
    observation, diagnosis = _load(run, "observation", Observation), _load(run, "diagnosis", Diagnosis)
    if tuning is None and observation is None and (decided := _decided(run)) is not None:
        return decided
    if tuning is None and (observation is None or diagnosis is None):
        raise RunNotFound(
            f"{run.folder} keeps no tune and no profile; make one: hotlap tune python train.py, or see another: "
            "hotlap report RUN"
        )
    return RunRecords(run=run, tuning=tuning, observation=observation, diagnosis=diagnosis)


def _decided(run: store.Run) -> RunRecords | None:
    """Of the process that was started; of the one that trained longest, where that one did not."""
    folder = store.Run(run.folder / "running")
    names = [path.stem for path in folder.folder.glob(f"{DECISIONS}-*.json")]
    several = [decisions for decisions in (_load(folder, name, Decisions) for name in names) if decisions is not None]
    if not several:
        return None
    longest = max(several, key=lambda decisions: (decisions.is_main, decisions.steps))
    told = _load(folder, f"{OUTCOMES}-{longest.pid}", Outcomes)
    return RunRecords(
        run=run,
        tuning=None,
        observation=None,
        diagnosis=None,
        decisions=longest,
        outcomes=() if told is None else told.outcomes,
    )


def _load(run: store.Run, name: str, kind: type[Record]) -> Record | None:
    if not (run.folder / f"{name}.json").exists():
        return None
    try:
        return run.load(name, kind)
    except OSError as error:
        path = run.folder / f"{name}.json"
        raise RecordUnreadable(f"cannot read {path} ({error.strerror}); run the command again") from error


def render(kept: RunRecords, form: str) -> str:
    seen, diagnosis = kept.observation, kept.diagnosis
    if kept.tuning is not None:
        made = {HTML: drawing.tuned_html, MARKDOWN: drawing.tuned_markdown, JSON: drawing.tuned_json}[form]
        return made(kept.tuning, seen, diagnosis)
    if kept.decisions is not None:
        if form == HTML:
            return decided.html(kept.decisions, kept.outcomes, kept.run.id)
        return decided.markdown(kept.decisions, kept.outcomes) if form == MARKDOWN else decided.as_json(kept.decisions)
    if seen is None or diagnosis is None:
        raise RunNotFound(f"{kept.run.folder} keeps no whole profile; run the command again")
    if form == HTML:
        return drawing.html(seen, diagnosis, kept.run.id)
    return drawing.markdown(seen, diagnosis) if form == MARKDOWN else drawing.as_json(seen, diagnosis)


def draw(kept: RunRecords) -> None:
    console = Console(highlight=False)
    if kept.tuning is not None:
        drawing.tuned_terminal(kept.tuning, kept.observation, kept.diagnosis, console)
    elif kept.decisions is not None:
        decided.terminal(kept.decisions, kept.outcomes, console)
    elif kept.observation is not None and kept.diagnosis is not None:
        drawing.terminal(kept.observation, kept.diagnosis, console)


def _write(path: Path, text: str, kept_by_us: bool) -> None:
    """What the user has named follows the umask, to be passed on."""
    try:
        if kept_by_us:
            private.write_text(path, text)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderUnwritable(
            f"cannot write {path} ({error.strerror or error}); choose another place: --output FILE"
        ) from error


def _open(path: Path) -> None:
    try:
        opened = webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        raise HotlapError(f"no browser could be started; the report is in {path}")
