"""hotlap run COMMAND…: train with optimisations applied, the source untouched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from hotlap import store
from hotlap.cli.say import say
from hotlap.errors import PlanUnusable, RunFolderUnwritable, UnknownOptimization
from hotlap.plan import choose, files, saved_plan
from hotlap.plan.needs import refuse_unmet
from hotlap.process.launch import resolve
from hotlap.records.plan import Plan, Risk
from hotlap.workflows import run as workflow

Find = Callable[[Path], Plan]  # the plan, once it is known where things are kept


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "show_default": True}
)
@click.option(
    "--risk",
    type=click.Choice([known.value for known in choose.RISKS]),
    help="What may change. exact: no number, losses are equal to the bit. rounding: also the order of operations, "
    "losses differ in the last digits. numeric: also the precision, as by autocast and tf32. Of a plan file no more "
    "than this is applied.  [default: what hotlap tune proved for this command, else exact]",
)
@click.option("--with", "with_", multiple=True, metavar="CODE[=VALUE]", help="Apply this one; may be given again.")
@click.option("--without", multiple=True, metavar="CODE", help="Leave this one out of the plan; may be given again.")
@click.option(
    "--plan",
    "plans",
    multiple=True,
    metavar="FILE|safe|fast",
    help="safe is --risk exact, fast is --risk rounding. Of a file that is not from a tune of yours, only what --risk "
    "allows.  [default: as for --risk; with --with: nothing else]",
)
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Keep the run here.  [default: the project's state folder]"
)
@click.option(
    "--at-once",
    is_flag=True,
    help="Apply all of it from the first step on, instead of trying in the run what makes it faster.",
)
@click.option("--verbose", is_flag=True, help="Say each thing that is tried, as it happens.")
@click.option("--quiet", is_flag=True, help="Say nothing of it.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
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
    """Train with what makes it faster; the source is untouched.

    COMMAND is what you would type without hotlap. It begins as it is; what may make it faster is switched on and off
    in blocks of its steps, and stays on where it does. The next run of the command begins with that. See what there
    is: hotlap list, hotlap explain CODE.
    """
    if verbose and quiet:
        raise click.UsageError("--verbose and --quiet exclude each other; give one of them.")
    if len(plans) > 1:
        raise UnknownOptimization(f"--plan is given {len(plans)} times; give one, and add to it by --with")
    changes = choose.Changes(with_, without)
    find = _finder(command, plans[0] if plans else None, Risk(risk) if risk else None, bool(with_))
    resolve(command)
    refuse_unmet(changes.asked, os.environ)
    why = None
    places: tuple[Callable[[], Path], ...] = (lambda: run_dir or store.home(), store.temporary_home)
    for where in places:
        try:
            place = where()
            store.prepare(place, "runs")
            _say_where(place, why, told=quiet or store.is_named(run_dir))
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
        except RunFolderUnwritable as error:  # which is found out before the command is started
            why = str(error).partition("; choose")[0]
    say(f"{why}; the command runs as it is, and nothing is applied")
    os.execv(resolve(command), command)


def _say_where(place: Path, why: str | None, told: bool) -> None:
    if why is not None:
        say(f"{why}; this run is kept in {place}")
    elif not told:
        say(f"kept in {place}")


def _finder(command: tuple[str, ...], plan: str | None, risk: Risk | None, asked: bool) -> Find:
    """What is named is read now, before anything is made: a wrong word must leave nothing behind."""
    meant = choose.risk_of(plan, risk)
    if plan is None and meant is None:
        return _nothing if asked else lambda place: _kept(place, command)
    if plan is None or plan in choose.WORDS:
        named = choose.automatic(meant or Risk.EXACT)
    elif not plan:
        raise PlanUnusable("--plan is empty; name a file, safe or fast")
    else:
        named = _given(plan, risk, command)
    return lambda place: named


def _given(plan: str, risk: Risk | None, command: tuple[str, ...]) -> Plan:
    """Something is there that is no plan, or not to be trusted: the training starts without it."""
    try:
        return _said(files.given(Path(plan), risk, command, _keys()))
    except PlanUnusable as error:
        if not os.path.lexists(plan) or isinstance(error.__cause__, UnknownOptimization):
            raise  # a wrong word, which nobody but the user can put right
        say(f"{str(error).partition('; ')[0]}; going on without it, with --risk {(risk or Risk.EXACT).value}")
        return choose.automatic(risk or Risk.EXACT)


def _nothing(place: Path) -> Plan:
    return choose.NOTHING


def _kept(place: Path, command: tuple[str, ...]) -> Plan:
    """A tune that proved nothing takes nothing away: it is then decided while it trains, as without a tune."""
    allowed = files.found(saved_plan.place(place, command), command, _keys())
    plan = None if allowed is None else _said(allowed)
    return plan if plan is not None and plan.choices else choose.automatic(Risk.EXACT)


def _keys() -> Path | None:
    try:
        return store.key_root()
    except RunFolderUnwritable:
        return None


def _said(allowed: files.PlanWithinBounds) -> Plan:
    for line in allowed.lines:
        say(line)
    return allowed.plan
