"""hotlap bench [WORKLOAD…]: train the bundled workloads in several ways and compare them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hotlap.bench import markdown, plot, session, table
from hotlap.bench.order import Key, schedule, seconds_left
from hotlap.bench.record import TRAINED, Bench, Run
from hotlap.bench.workloads import ARMS
from hotlap.cli.live import StatusLine
from hotlap.cli.say import say
from hotlap.errors import INTERRUPTED, PackageMissing, RunFolderUnwritable
from hotlap.records import private
from hotlap.records.visible import everywhere, visible

EVERY = 1.0  # seconds between updates of the live line, which shares the cores with the arm
WIDTH_WITHOUT_TERMINAL = 200
SHOWN_ERRORS = 6


@click.command()
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...")
@click.option("--arms", metavar="A,B,…", help=f"Which ways to train.  [default: {','.join(ARMS)}]")
@click.option("--size", type=click.Choice(session.SIZES), help=f"Size of the data.  [default: {session.SIZE}]")
@click.option(
    "--seeds", type=click.IntRange(1), metavar="K", help=f"Train with seeds 0 to K-1.  [default: {session.SEEDS}]"
)
@click.option(
    "--epochs", type=click.IntRange(1), metavar="N", help="Train N epochs.  [default: as many as reach the target]"
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: cuda where there is a GPU]")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.json",
    help="Write the raw result here, with table and plot.  [default: bench/<date>-<time>.json in the state folder]",
)
@click.option("--markdown", "markdown_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.md",
              help="Write the table here.  [default: beside the raw result]")  # fmt: skip
@click.option("--resume", is_flag=True, help="Continue --out, or the newest bench; runs that broke are tried again.")
@click.option(
    "--max-minutes",
    type=click.FloatRange(0, min_open=True),
    metavar="M",
    help="End a run that takes longer than this and count it as broken.  [default: no limit]",
)
def bench(
    workloads: tuple[str, ...],
    arms: str | None,
    size: str | None,
    seeds: int | None,
    epochs: int | None,
    device: str | None,
    out: Path | None,
    markdown_file: Path | None,
    resume: bool,
    max_minutes: float | None,
) -> int:
    """Train the bundled workloads in several ways and compare them.

    WORKLOAD is battery_lstm, battery_fnn, bloom, banknotes or leak; all of them by default. The arms: naive (the
    pipeline as the report found it), lightning and accelerate (the same with their own fast settings), run (naive under
    hotlap run, its source untouched), engine (written with hotlap.engine), limit (written by hand for the hardware).

    Every run is a fresh process and is saved the moment it ends. The arms of a workload run one after the other with
    seed 0, then in reverse order with seed 1, and so on, on the same data. Reported: samples/s in steady state, ratio
    to naive with a 95 % interval, seconds to the quality target, final quality of every seed, peak memory.

    Data is made once in ~/.cache/hotlap/data, or in HOTLAP_DATA. HOTLAP_WORKLOADS names another folder of workloads.

    Exit code 0: every run trained. 1: some broke, the rest are reported. 130: interrupted, continue with --resume.
    """
    request = session.BenchRequest(
        workloads=workloads or None,
        arms=_words(arms),
        size=size,
        device=device,
        seeds=seeds,
        epochs=epochs,
        out=out,
        resume=resume,
        max_minutes=max_minutes,
    )
    prepared = session.prepare(request)
    try:
        with _terminated_like_interrupted(), Progress(len(schedule(prepared.bench.choice))) as progress:
            result = session.perform(prepared, progress)
    except KeyboardInterrupt:
        say(f"interrupted; finished runs are saved, continue: hotlap bench --resume --out {prepared.out}")
        return INTERRUPTED
    show(everywhere(result), Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL))
    _write(result, prepared, markdown_file)
    return 1 if any(row.broken for row in result.summary) else 0


def _words(arms: str | None) -> tuple[str, ...] | None:
    if arms is None:
        return None
    return tuple(word.strip() for word in arms.split(","))


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that it ends the arm in flight as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Progress(StatusLine):
    """A live line on stderr with the time left; without a terminal, one plain line per finished run."""

    def __init__(self, total: int) -> None:
        super().__init__(enabled=True, every=EVERY)
        self._total = total

    def making_data(self, workload: str, elapsed: float) -> None:
        self.draw(f"hotlap bench: generating the data of {workload}, {elapsed:.0f} s")

    def running(self, key: Key, runs: tuple[Run, ...], waiting: list[Key], epoch: int, elapsed: float) -> None:
        self.draw(self.text(key, runs, waiting, epoch, elapsed))

    def ended(self, run: Run, runs: tuple[Run, ...], waiting: list[Key]) -> None:
        self.clear()
        workload, arm, seed = run.key
        outcome = "trained" if run.ended == TRAINED else f"broken, {run.why}"
        left = "" if self.is_live or not waiting else f"; {left_text(seconds_left(runs, waiting, None, 0.0))}"
        done = self._total - len(waiting)
        report = f"{done}/{self._total} {workload} {arm} seed {seed}: {outcome}, {run.seconds:.1f} s{left}"
        for line in (report, *(f"    {line}" for line in run.errors[-SHOWN_ERRORS:])):
            print(visible(line), file=sys.stderr)
        sys.stderr.flush()

    def text(self, key: Key, runs: tuple[Run, ...], waiting: list[Key], epoch: int, elapsed: float) -> str:
        workload, arm, seed = key
        number = self._total - len(waiting)
        progress = f"epoch {epoch} done" if epoch else "starting"
        left = left_text(seconds_left(runs, waiting, key, elapsed))
        return f"{number}/{self._total} {workload} {arm} seed {seed}, {progress}, {elapsed:.0f} s; {left}"


def left_text(seconds: float | None) -> str:
    if seconds is None:
        return "time left unknown"
    if seconds < 90:
        return f"about {seconds:.0f} s left"
    minutes = seconds / 60
    return f"about {minutes:.0f} min left" if minutes < 90 else f"about {minutes / 60:.1f} h left"


def show(result: Bench, console: Console) -> None:
    grid = Table(title=Text(markdown.title(result)), title_justify="left", header_style="bold")
    for heading in table.HEADINGS:
        grid.add_column(heading)
    previous = ""
    for row in result.summary:
        if previous and row.workload != previous:
            grid.add_section()
        shown = table.cells(row)
        grid.add_row(*(Text("" if i == 0 and row.workload == previous else cell) for i, cell in enumerate(shown)))
        previous = row.workload
    console.print(grid)
    for note in table.notes(result):
        console.print(note, style="dim", markup=False)
    for line in table.settings(result):
        console.print(line, style="dim", markup=False)
    for line in table.broken(result):
        console.print(f"broken: {line}", style="red", markup=False)


def _write(result: Bench, prepared: session.Session, markdown_file: Path | None) -> None:
    """Write the table and the plot beside the raw result, which is already saved."""
    out = prepared.out
    page = markdown_file or out.with_suffix(".md")
    try:
        pictures = plot.draw(result, out)
    except PackageMissing as error:
        say(str(error))
        pictures = []
    except OSError as error:
        raise RunFolderUnwritable(f"cannot write the plot beside {out} ({error.strerror or error})") from error
    picture = _relative(pictures[-1], page.parent) if pictures else None
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(markdown.page(result, picture), encoding="utf-8")
    except OSError as error:
        raise RunFolderUnwritable(
            f"cannot write {page} ({error.strerror or error}); the raw result is in {out}"
        ) from error
    for path in (page, *pictures) if prepared.kept_by_us else ():
        if path != markdown_file:
            path.chmod(private.FILE)
    print(visible(f"Saved in {', '.join(str(path) for path in (out, page, *pictures))}"), file=sys.stderr)


def _relative(path: Path, folder: Path) -> str:
    resolved, start = path.resolve(), folder.resolve()
    return resolved.relative_to(start).as_posix() if resolved.is_relative_to(start) else str(resolved)
