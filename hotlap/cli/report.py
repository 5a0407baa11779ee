"""hotlap report [RUN]: show the report of a run, or write it to a file."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console

from hotlap import report as drawing
from hotlap import store
from hotlap.cli import completion
from hotlap.cli.overwriting import spare_others
from hotlap.errors import HotlapError, RecordUnreadable, RunFolderUnwritable, RunNotFound
from hotlap.patch.entry import DECISIONS, OUTCOMES
from hotlap.records import private
from hotlap.records.codec import to_json
from hotlap.records.comparison import Comparison
from hotlap.records.decisions import Decisions
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.observation import Observation
from hotlap.records.plan import Outcome, Outcomes
from hotlap.records.tune_record import TuneRecord
from hotlap.records.visible import visible
from hotlap.report.compare import page as compared
from hotlap.report.run import decisions as decided

HTML, MARKDOWN, JSON, TERMINAL = "html", "markdown", "json", "terminal"
SUFFIXES = {".html": HTML, ".htm": HTML, ".md": MARKDOWN, ".markdown": MARKDOWN, ".json": JSON}
STDOUT = Path("-")
PAGE = "report.html"  # in the run folder
Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecords:
    """The records of a run: a tune, a profile alone, a comparison, or what hotlap run decided."""

    run: store.Run
    tuning: TuneRecord | None
    observation: Observation | None
    diagnosis: Diagnosis | None
    decisions: Decisions | None = None
    outcomes: tuple[Outcome, ...] = ()
    comparison: Comparison | None = None


@click.command()
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option(
    "--html", "as_html", is_flag=True, help=f"Write one HTML file: {PAGE} in the run folder unless --output is given."
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Write Markdown, for a pull request.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON: the report and every record behind it.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write to FILE; - is the standard output. The suffix decides the format unless one is given.",
)
@click.option("--open", "open_it", is_flag=True, help="Write the HTML file and open it in the browser.")
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Find runs here.  [default: the project's state folder]"
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
    """Show or write the report of a run.

    RUN is an id, the beginning of one, or a folder; the newest by default. Without a format, shows it in the terminal.
    """
    formats = [name for name, wanted in ((HTML, as_html), (MARKDOWN, as_markdown), (JSON, as_json)) if wanted]
    form = _format(formats, output, open_it)
    if output is not None and output != STDOUT:
        spare_others(output, *(suffix for suffix, made in SUFFIXES.items() if made == form))
    loaded = records(store.find(run, run_dir))
    if form == TERMINAL:
        draw(loaded)
        return 0
    to = output or (loaded.run.folder / PAGE if form == HTML else STDOUT)
    text = render(loaded, form)
    if to == STDOUT:
        click.echo(text, nl=False)
        return 0
    _write(to, text, kept_by_us=output is None)
    click.echo(visible(str(to)))
    if open_it:
        _open(to)
    return 0


def _format(formats: list[str], output: Path | None, open_it: bool) -> str:
    if len(formats) > 1:
        raise click.UsageError(f"--{formats[0]} and --{formats[1]} exclude each other; give one of them.")
    known = SUFFIXES.get(output.suffix.lower()) if output else None
    if output is not None and not formats and not open_it and known is None:
        raise click.UsageError(f"{output} does not tell the format; add --html, --markdown or --json.")
    form = formats[0] if formats else HTML if open_it else known or TERMINAL
    if open_it and (form != HTML or output == STDOUT):
        raise click.UsageError("--open needs an HTML file; leave out --markdown, --json and --output -.")
    return form


def records(run: store.Run) -> RunRecords:
    """Load the records of a run. A tune may lack its profile; a run without any record cannot be reported."""
    if (comparison := _load(run, "comparison", Comparison)) is not None:
        return RunRecords(run=run, tuning=None, observation=None, diagnosis=None, comparison=comparison)
    tuning = _load(run, "tuning", TuneRecord)
    observation, diagnosis = _load(run, "observation", Observation), _load(run, "diagnosis", Diagnosis)
    if tuning is None and observation is None and (decided_run := _decided(run)) is not None:
        return decided_run
    if tuning is None and (observation is None or diagnosis is None):
        raise RunNotFound(f"{run.folder} holds no result, since it ended too early; choose another run: hotlap runs")
    return RunRecords(run=run, tuning=tuning, observation=observation, diagnosis=diagnosis)


def _decided(run: store.Run) -> RunRecords | None:
    """Load what the started process decided or, where it decided nothing, the one that trained longest."""
    folder = store.Run(run.folder / "running")
    names = [path.stem for path in folder.folder.glob(f"{DECISIONS}-*.json")]
    saved = [decisions for decisions in (_load(folder, name, Decisions) for name in names) if decisions is not None]
    if not saved:
        return None
    longest = max(saved, key=lambda decisions: (decisions.is_main, decisions.steps))
    reported = _load(folder, f"{OUTCOMES}-{longest.pid}", Outcomes)
    return RunRecords(
        run=run,
        tuning=None,
        observation=None,
        diagnosis=None,
        decisions=longest,
        outcomes=() if reported is None else reported.outcomes,
    )


def _load(run: store.Run, name: str, kind: type[Record]) -> Record | None:
    if not (run.folder / f"{name}.json").exists():
        return None
    try:
        return run.load(name, kind)
    except OSError as error:
        path = run.folder / f"{name}.json"
        raise RecordUnreadable(f"cannot read {path} ({error.strerror}); run the command again") from error


def render(loaded: RunRecords, form: str) -> str:
    observation, diagnosis = loaded.observation, loaded.diagnosis
    if loaded.tuning is not None:
        page = {HTML: drawing.tuned_html, MARKDOWN: drawing.tuned_markdown, JSON: drawing.tuned_json}[form]
        return page(loaded.tuning, observation, diagnosis)
    if loaded.comparison is not None:
        if form == HTML:
            raise click.UsageError("a comparison is no HTML page; write it with --markdown or --json.")
        return compared.markdown(loaded.comparison) if form == MARKDOWN else to_json(loaded.comparison)
    if loaded.decisions is not None:
        if form == HTML:
            return decided.html(loaded.decisions, loaded.outcomes, loaded.run.id)
        return (
            decided.markdown(loaded.decisions, loaded.outcomes)
            if form == MARKDOWN
            else decided.as_json(loaded.decisions)
        )
    if observation is None or diagnosis is None:
        raise RunNotFound(f"{loaded.run.folder} holds no complete profile; run the command again")
    if form == HTML:
        return drawing.html(observation, diagnosis, loaded.run.id)
    return drawing.markdown(observation, diagnosis) if form == MARKDOWN else drawing.as_json(observation, diagnosis)


def draw(loaded: RunRecords) -> None:
    console = Console(highlight=False)
    if loaded.tuning is not None:
        drawing.tuned_terminal(loaded.tuning, loaded.observation, loaded.diagnosis, console)
    elif loaded.decisions is not None:
        decided.terminal(loaded.decisions, loaded.outcomes, console)
    elif loaded.comparison is not None:
        compared.terminal(loaded.comparison, console)
    elif loaded.observation is not None and loaded.diagnosis is not None:
        drawing.terminal(loaded.observation, loaded.diagnosis, console)


def _write(path: Path, text: str, kept_by_us: bool) -> None:
    """Write the page; a file that the user named follows the umask, so that it can be shared."""
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
        raise HotlapError(f"could not open a browser; the report is in {path}")
