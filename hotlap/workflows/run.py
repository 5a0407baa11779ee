"""hotlap run: the command replaces this process, with a plan applied from the start or decided while it trains."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hotlap import store
from hotlap.patch.voice import ears, say
from hotlap.plan import memory
from hotlap.plan.choose import at_start, variables
from hotlap.plan.saved_plan import source_hash
from hotlap.process.launch import become, keeps_us_out, resolve
from hotlap.records import private
from hotlap.records.codec import SCHEMA
from hotlap.records.plan import Choice, Plan
from hotlap.records.session import Session

APPLIER = "hotlap.control.applied_plan:start"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    command: tuple[str, ...]
    plan: Plan
    otherwise: tuple[Choice, ...]  # choices to use if the plan was proven with another torch or hardware
    quiet: bool
    run_dir: Path | None
    decides: bool = False  # while it trains; else the whole plan is applied from the start
    verbose: bool = False


def run(options: RunOptions) -> NoReturn:
    """Replace this process with the command and the plan applied; the command's own process reports what happened."""
    resolve(options.command)
    new_run = store.create(options.command, options.run_dir)
    new_run.save("plan", options.plan)
    folder = new_run.folder / "running"
    session = Session(
        schema=SCHEMA,
        folder=str(folder.resolve()),
        agent=APPLIER,
        steps=None,
        warmup=None,
        max_seconds=math.inf,
        full=True,
        ceiling=False,
        trace=False,
        started=time.time(),
        choices=options.plan.choices,
        proven=options.plan.proven,
        otherwise=options.otherwise,
        decides=options.decides,
        **_memory(options),
        quiet=options.quiet,
        verbose=options.verbose,
        ears=ears(),
        speaker=os.getpid(),
    )
    file = store.keep_session(folder, session)
    if not options.quiet and (why := _stays_out(options.command)) is not None:
        say(f"{why}; nothing is applied")
    choices = options.plan.choices
    become(options.command, file, variables(at_start(choices) if options.decides else choices, os.environ))


def _memory(options: RunOptions) -> dict[str, Any]:
    """Return where to remember what this command decides, and what an earlier run of it decided."""
    if not options.decides or options.run_dir is None:
        return {}
    file, source = memory.place(options.run_dir, options.command, options.plan.choices), source_hash(options.command)
    remembered = None
    try:
        remembered = memory.recall(file, source)
    except (private.Unfit, OSError) as error:
        if not options.quiet:
            say(f"decisions of earlier runs are not used: {error}")
    return {"memory": str(file), "source": source, "remembered": remembered}


def _stays_out(command: tuple[str, ...]) -> str | None:
    """Return why nothing can be applied, as far as that is certain before the command starts."""
    if os.environ.get("HOTLAP") == "off":
        return "HOTLAP=off is set"
    option = keeps_us_out(command)
    return None if option is None else f"{option} keeps hotlap out of {command[0]}"
