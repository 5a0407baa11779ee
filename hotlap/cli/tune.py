"""hotlap tune COMMAND…: try what could make a training faster, and keep what is proven faster and harmless."""

from __future__ import annotations

import re
from pathlib import Path

import click
from click.core import ParameterSource
from rich.console import Console

from hotlap import report, store
from hotlap.cli.completion import commands
from hotlap.cli.live import LiveLine
from hotlap.cli.packages import need_scipy
from hotlap.cli.report import HTML, PAGE, records, render
from hotlap.cli.say import note
from hotlap.cli.tuning_line import TuningLine
from hotlap.cli.values import seconds, size_mb, some_share
from hotlap.plan import choose
from hotlap.records import private
from hotlap.records.plan import Risk
from hotlap.records.tune_record import VALUE, Metric, TuneRequest
from hotlap.workflows import tune as tuning

TAG = "tb:"
FIELDS = {  # parameter -> field of TuneRequest
    "budget": "budget_seconds",
    "risk": "risk",
    "metric": "metric",
    "higher_is_better": "metric",
    "steps": "steps",
    "min_effect": "minimum",
    "memory": "memory_mb",
    "device_memory": "device_mb",
}


@click.command(context_settings={"allow_interspersed_args": False, "show_default": True})
@click.option(
    "--budget", callback=seconds, default="10m", metavar="TIME", help="Time for the whole tune: 90s, 10m, 1h."
)
@click.option(
    "--risk",
    type=click.Choice([str(risk) for risk in choose.RISKS]),
    default=str(Risk.ROUNDING),
    help="What may change: nothing, the rounding, or the precision.",
)
@click.option(
    "--metric",
    metavar="REGEX|tb:TAG|NAME",
    help="Your measure of quality: a pattern over the output with the value in its first group, a TensorBoard tag, or "
    "the name passed to hotlap.metric(name, value).",
)
@click.option("--higher-is-better", is_flag=True, help="Higher values of the metric are better.  [default: lower]")
@click.option("--steps", type=click.IntRange(25), metavar="N", help="Train N steps in each process.  [default: chosen]")
@click.option("--min-effect", callback=some_share, default="2%", metavar="SHARE", help="Smallest speed-up that counts.")
@click.option(
    "--memory", callback=size_mb, metavar="SIZE", help="End a trial whose processes use more memory: 500M, 16G."
)
@click.option(
    "--device-memory",
    callback=size_mb,
    metavar="SIZE",
    help="Limit a trial to this much memory on each GPU: 500M, 40G.",
)
@click.option("--resume", is_flag=True, help="Continue RUN, or the newest unfinished tune.")
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Save runs here.  [default: the project's state folder]"
)
@click.option("--verbose", is_flag=True, help="End with the whole report instead of the verdict and what to type next.")
@click.option("--quiet", is_flag=True, help="Print only the verdict and what to type next.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=commands, metavar="COMMAND...|RUN")
def tune(
    command: tuple[str, ...],
    budget: float,
    risk: str,
    metric: str | None,
    higher_is_better: bool,
    steps: int | None,
    min_effect: float,
    memory: float | None,
    device_memory: float | None,
    resume: bool,
    run_dir: Path | None,
    verbose: bool,
    quiet: bool,
) -> int:
    """Find what makes a training command faster without harm, and prove it.

    The command is run many times for some steps, each time in a fresh process; the files it writes go to a scratch
    folder. Afterwards `hotlap run COMMAND` applies what was proven.
    """
    if verbose and quiet:
        raise click.UsageError("--verbose and --quiet exclude each other; give one of them.")
    if higher_is_better and metric is None:
        raise click.UsageError("--higher-is-better needs --metric")
    need_scipy("hotlap tune")
    request = TuneRequest(
        command=command,
        budget_seconds=budget,
        risk=Risk(risk),
        metric=_metric(metric, higher_is_better),
        steps=steps,
        minimum=1 + min_effect,
        folder=str(Path.cwd()),
        memory_mb=memory,
        device_mb=device_memory,
    )
    with TuningLine(quiet=quiet) as line, LiveLine(enabled=not quiet) as live:
        done = _resumed(command, run_dir, _typed(request), live, line) if resume else None
        if done is None:
            if not command:
                raise click.UsageError("give the training command, such as: hotlap tune python train.py")
            done = tuning.tune(request, live.update, line, run_dir)
    _conclude(done, Console(stderr=True, highlight=False), verbose)
    return 0


def _conclude(done: tuning.TuneResult, console: Console, verbose: bool) -> None:
    """Show the verdict, what is kept, what to type next, and where the report is."""
    loaded = records(done.run)
    draw = report.tuned_terminal if verbose else report.tune_ending
    draw(done.tuning, loaded.observation, loaded.diagnosis, console)
    page = _write_page(done.run.folder / PAGE, render(loaded, HTML))
    note(console, "The report could not be written" if page is None else f"The report is {page}")


def _write_page(page: Path, text: str) -> Path | None:
    """Write the report; None where that fails, since it can be rendered from the records at any time."""
    try:
        private.write_text(page, text)
    except OSError:
        return None
    return page


def _resumed(
    words: tuple[str, ...],
    run_dir: Path | None,
    given: dict[str, tuple[str, object]],
    live: LiveLine,
    line: TuningLine,
) -> tuning.TuneResult | None:
    """Resume the named tune, or the newest unfinished one; None where the given command has none."""
    if len(words) == 1 and not words[0].endswith(".py"):
        return tuning.resume(store.find(words[0], run_dir), line, live.update, run_dir, given)
    found = tuning.unfinished(words or None, run_dir, missing_ok=bool(words))
    if found is None:
        line.caution("this command has no unfinished tune; starting a new one")
        return None
    return tuning.resume(found, line, live.update, run_dir, given)


def _typed(request: TuneRequest) -> dict[str, tuple[str, object]]:
    """Return the options that were typed, keyed by the field of TuneRequest that they set."""
    context = click.get_current_context()
    typed = [name for name in FIELDS if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    return {FIELDS[name]: (f"--{name.replace('_', '-')}", getattr(request, FIELDS[name])) for name in typed}


def _metric(text: str | None, higher_is_better: bool) -> Metric | None:
    if text is None:
        return None
    name, pattern, tag = text, None, None
    if text.startswith(TAG):
        name = tag = text.removeprefix(TAG)
    elif not re.fullmatch(r"[\w./-]+", text):
        pattern = text
        name = re.sub(r"[^\w./-]+", " ", text.partition("(")[0]).strip() or "metric"
        try:
            groups = re.compile(text).groups
        except re.error as error:
            raise click.BadParameter(f"not a regular expression ({error}): {text}", param_hint="--metric") from error
        if groups == 0:
            word = re.match(r"[\w /-]*", text)[0].rstrip() or "loss"  # type: ignore[index]
            example = f"'{word}{VALUE}'"
            raise click.BadParameter(f"put the value in a group, as in --metric {example}", param_hint="--metric")
    if not name:
        raise click.BadParameter("name a TensorBoard tag, such as tb:val/acc", param_hint="--metric")
    return Metric(name=name, pattern=pattern, tag=tag, higher_is_better=higher_is_better, margin=None)
