"""hotlap run COMMAND…: train with optimisations applied, the source untouched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from hotlap import pipeline, store
from hotlap.errors import UnknownOptimization
from hotlap.model.plan import Plan
from hotlap.plan import choose, saved


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "show_default": True}
)
@click.option("--with", "with_", multiple=True, metavar="CODE[=VALUE]", help="Apply this one; may be given again.")
@click.option("--without", multiple=True, metavar="CODE", help="Leave this one out of the plan; may be given again.")
@click.option(
    "--plan",
    "plans",
    multiple=True,
    metavar="FILE|safe|fast",
    help="safe: all that change no number; fast: also those that change rounding.  [default: what hotlap tune proved "
    "for this command, else safe; with --with: nothing else]",
)
@click.option("--run-dir", type=click.Path(path_type=Path), help="Keep runs here.  [default: .hotlap]")
@click.option("--quiet", is_flag=True, help="Do not say what was applied.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
def run(
    command: tuple[str, ...],
    with_: tuple[str, ...],
    without: tuple[str, ...],
    plans: tuple[str, ...],
    run_dir: Path | None,
    quiet: bool,
) -> NoReturn:
    """Train with optimisations applied; the source is untouched.

    COMMAND is what you would type without hotlap. See what there is: hotlap list, hotlap explain CODE.
    """
    if len(plans) > 1:
        raise UnknownOptimization(f"--plan is given {len(plans)} times; give one, and add to it by --with")
    chosen = _chosen(command, with_, without, plans[0] if plans else None, run_dir)
    pipeline.run(pipeline.RunOptions(command=command, plan=chosen, quiet=quiet, run_dir=run_dir))


def _chosen(
    command: tuple[str, ...], with_: tuple[str, ...], without: tuple[str, ...], plan: str | None, run_dir: Path | None
) -> Plan:
    if plan is None and not with_:
        kept = saved.place(run_dir or store.home(), command)
        plan = str(kept) if kept.exists() else choose.SAFE
    chosen = choose.choose(plan, with_, without)
    differs = saved.difference(chosen, command)
    if differs is None:
        return chosen
    print(f"hotlap: the plan {plan} was proven for {differs}; running with the plan 'safe' instead", file=sys.stderr)
    return choose.choose(choose.SAFE, (), without)
