"""hotlap run COMMAND…: train with optimisations applied, the source untouched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from hotlap import store
from hotlap.cli.completion import commands, optimisations
from hotlap.cli.say import say
from hotlap.errors import PlanUnusable, RunFolderUnwritable, UnknownOptimization
from hotlap.plan import choose, files, saved_plan
from hotlap.plan.needs import refuse_unmet
from hotlap.process.launch import resolve
from hotlap.records.plan import Plan, Risk
from hotlap.workflows import run as workflow

Find = Callable[[Path], Plan]  # returns the plan, once the state folder is known


@click.command(context_settings={"allow_interspersed_args": False, "show_default": True})
@click.option(
    "--risk",
    type=click.Choice([str(risk) for risk in choose.RISKS]),
    help="What may change. exact: nothing, losses are bit-equal. rounding: also the order of operations, "
    "losses differ in the last digits. numeric: also the precision, as with autocast and tf32. Of a plan file, only "
    "what this allows is applied.  [default: what hotlap tune proved for this command, else exact]",
)
@click.option(
    "--with",
    "with_",
    multiple=True,
    metavar="CODE[=VALUE]",
    shell_complete=optimisations,
    help="Apply this optimisation; may be repeated.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="CODE",
    shell_complete=optimisations,
    help="Leave this one out of the plan; may be repeated.",
)
@click.option(
    "--plan",
    "plans",
    multiple=True,
    metavar="FILE|safe|fast",
    help="safe means --risk exact, fast means --risk rounding. Of a file that your own tune did not write, only what "
    "--risk allows is applied.  [default: as for --risk; with --with: nothing else]",
)
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Save the run here.  [default: the project's state folder]"
)
@click.option(
    "--at-once",
    is_flag=True,
    help="Apply everything from the first step, instead of measuring during the run what makes it faster.",
)
@click.option("--verbose", is_flag=True, help="Print each trial as it happens.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, shell_complete=commands, metavar="COMMAND..."
)
def run(
    command: tuple[str, ...],
    risk: str | None,
    with_: tuple[str, ...],
    without: tuple[str, ...],
    plans: tuple[str, ...],
    run_dir: Path | None,
    at_once: bool,
    verbose: bool,
    quiet: bool,
) -> NoReturn:
    """Train with the optimisations that make it faster; no source is touched.

    COMMAND is what you would type without hotlap. It starts unchanged; each optimisation that may help is switched on
    and off in blocks of steps, and stays on where it is faster. The next run of the command starts with those. To see
    what is available: hotlap list, hotlap explain CODE.
    """
    if verbose and quiet:
        raise click.UsageError("--verbose and --quiet exclude each other; give one of them.")
    if len(plans) > 1:
        raise UnknownOptimization(f"--plan is given {len(plans)} times; give it once and add to it with --with")
    changes = choose.Changes(with_, without)
    find = _finder(command, plans[0] if plans else None, Risk(risk) if risk else None, bool(with_))
    resolve(command)
    refuse_unmet(changes.asked, os.environ)
    reason = None
    places: tuple[Callable[[], Path], ...] = (lambda: run_dir or store.home(), store.temporary_home)
    for where in places:
        try:
            place = where()
            store.prepare(place, "runs")
            _say_where(place, reason, silent=quiet or store.is_named(run_dir))
            plan = changes.of(find(place))
            workflow.run(
                workflow.RunOptions(
                    command=command,
                    plan=plan,
                    decides=not at_once and plan.title in choose.TITLES,
                    otherwise=changes.of(choose.automatic(Risk.EXACT)).choices,
                    quiet=quiet,
                    verbose=verbose,
                    run_dir=place,
                )
            )
        except RunFolderUnwritable as error:  # raised only before the command is started
            reason = str(error).partition("; choose")[0]
    say(f"{reason}; nothing is applied, and the command runs unchanged")
    os.execv(resolve(command), command)


def _say_where(place: Path, reason: str | None, silent: bool) -> None:
    if reason is not None:
        say(f"{reason}; saving this run in {place}")
    elif not silent:
        say(f"saving this run in {place}")


def _finder(command: tuple[str, ...], plan: str | None, risk: Risk | None, chosen: bool) -> Find:
    """Read whatever the options name now, before anything is written: a typo must leave nothing behind."""
    allowed = choose.risk_of(plan, risk)
    if plan is None and allowed is None:
        return _nothing if chosen else lambda place: _tuned(place, command)
    if plan is None or plan in choose.WORDS:
        named = choose.automatic(allowed or Risk.EXACT)
    elif not plan:
        raise PlanUnusable("--plan is empty; name a file, safe or fast")
    else:
        named = _from_file(plan, risk, command)
    return lambda place: named


def _from_file(plan: str, risk: Risk | None, command: tuple[str, ...]) -> Plan:
    """Read a plan file; one that exists but is damaged or not trusted is skipped, and training starts without it."""
    try:
        return _announced(files.given(Path(plan), risk, command, _keys()))
    except PlanUnusable as error:
        if not os.path.lexists(plan) or isinstance(error.__cause__, UnknownOptimization):
            raise  # a typo, which only the user can correct
        say(f"{str(error).partition('; ')[0]}; continuing without it, with --risk {(risk or Risk.EXACT).value}")
        return choose.automatic(risk or Risk.EXACT)


def _nothing(place: Path) -> Plan:
    return choose.NOTHING


def _tuned(place: Path, command: tuple[str, ...]) -> Plan:
    """Return the plan of a tune; without one, or where it proved nothing, the run decides while it trains."""
    bounded = files.found(saved_plan.place(place, command), command, _keys())
    plan = None if bounded is None else _announced(bounded)
    return plan if plan is not None and plan.choices else choose.automatic(Risk.EXACT)


def _keys() -> Path | None:
    try:
        return store.key_root()
    except RunFolderUnwritable:
        return None


def _announced(bounded: files.PlanWithinBounds) -> Plan:
    for line in bounded.lines:
        say(line)
    return bounded.plan
