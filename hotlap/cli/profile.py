"""hotlap profile COMMAND…: where each step's time goes, and which line is to blame."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
from rich.console import Console

from hotlap import report
from hotlap.cli.completion import commands
from hotlap.cli.live import LiveLine
from hotlap.cli.overwriting import JSON, MARKDOWN, spare_others
from hotlap.cli.say import line_break, note, say
from hotlap.errors import HotlapError
from hotlap.process.in_front import die_by
from hotlap.report.profile.batch_sizes import lines as batch_size_lines
from hotlap.workflows import profile as workflow
from hotlap.workflows.batch_sizes import measure as measure_batch_sizes


@click.command(context_settings={"allow_interspersed_args": False, "show_default": True})
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Measure N steps.  [default: until steady]")
@click.option("--warmup", type=click.IntRange(0), metavar="N", help="Skip the first N steps.  [default: detected]")
@click.option(
    "--max-seconds",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    help="Stop measuring, or give up, after this many seconds.",
)
@click.option("--full", is_flag=True, help="Let the command run to its end.")
@click.option("--ceiling/--no-ceiling", default=True, help="Run the command a second time on one cached batch.")
@click.option(
    "--batch-sizes",
    metavar="SIZES",
    help="Run it again with each of these batch sizes, such as 32,64, or auto.",
)
@click.option("--trace", is_flag=True, help="Save a Chrome trace of a few steps (Perfetto, TensorBoard).")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write JSON here.")
@click.option(
    "--markdown",
    "markdown_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write Markdown here.",
)
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Save runs here.  [default: the project's state folder]"
)
@click.option("--quiet", is_flag=True, help="Show no live line and no report.")
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=commands, metavar="COMMAND..."
)
def profile(
    command: tuple[str, ...],
    steps: int | None,
    warmup: int | None,
    max_seconds: float,
    full: bool,
    ceiling: bool,
    batch_sizes: str | None,
    trace: bool,
    json_file: Path | None,
    markdown_file: Path | None,
    run_dir: Path | None,
    quiet: bool,
) -> int:
    """Run a training command and show where its time goes.

    COMMAND is what you would type without hotlap: python train.py --lr 0.1, python -m pkg, torchrun …,
    accelerate launch …. Its output is unchanged; the report goes to stderr and is saved in the project's state folder.
    """
    spare_others(json_file, *JSON)
    spare_others(markdown_file, *MARKDOWN)
    sizes = None if batch_sizes is None else _sizes(batch_sizes)
    options = workflow.ProfileOptions(
        command=command,
        steps=steps,
        warmup=warmup,
        max_seconds=max_seconds,
        full=full,
        ceiling=ceiling,
        trace=trace,
        run_dir=run_dir,
    )
    try:
        with LiveLine(enabled=not quiet) as live:
            result = workflow.profile(options, live.update)
            other_sizes = _measured(options, result, sizes, live)
    except HotlapError as error:
        if error.died_by is None:
            raise
        say(str(error))
        die_by(error.died_by)
        return error.exit_code
    _write(json_file, lambda: report.as_json(result.observation, result.diagnosis))
    _write(markdown_file, lambda: report.markdown(result.observation, result.diagnosis))
    if not quiet:
        with suppress(OSError, SystemExit):  # the second is rich's: the exit code is the command's, whoever reads this
            _show(result)
    for line in other_sizes:
        say(line)
    if result.died_by is not None:
        die_by(result.died_by)
    return result.exit_code


def _sizes(given: str) -> tuple[int, ...]:
    """Return the sizes named; none for "auto"."""
    if given == "auto":
        return ()
    parts = given.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"{given!r}; name sizes such as 32,64,128, or auto", param_hint="--batch-sizes")
    return tuple(int(part) for part in parts)


def _measured(
    options: workflow.ProfileOptions, result: workflow.Profile, sizes: tuple[int, ...] | None, live: LiveLine
) -> list[str]:
    """Return the lines about other batch sizes, where they were asked for and the command did not fail."""
    if sizes is None or result.exit_code or result.died_by is not None:
        return []
    return batch_size_lines(measure_batch_sizes(options, result, sizes, live.update))


def _show(result: workflow.Profile) -> None:
    console = Console(stderr=True, highlight=False)
    console.file.write(line_break())
    report.terminal(result.observation, result.diagnosis, console)
    note(console, f"Saved in {result.run.folder}; show it again: hotlap show {result.run.id}")


def _write(path: Path | None, make: Callable[[], str]) -> None:
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make(), encoding="utf-8")
    except OSError as error:
        raise HotlapError(f"cannot write {path} ({error.strerror}); the run itself is saved: hotlap show") from error
