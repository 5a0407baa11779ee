"""Reads plan files and decides how much of each may be applied.

A plan proven by this user's own tune is signed, and is applied as far as it was proven. Of any other plan, only what
the risk allows is applied: a file cannot claim to be proven, nor that the user requested what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotlap.catalog import entries
from hotlap.errors import PlanUnusable, RecordUnreadable, UnknownOptimization
from hotlap.plan import saved_plan, signature
from hotlap.plan.choose import automatic, check, refuse_conflicts
from hotlap.records import private
from hotlap.records.codec import from_json, to_json
from hotlap.records.plan import Choice, Plan, Risk

LARGEST = 1 << 20  # bytes; a plan has a few thousand
REMEDY = "create it again with hotlap tune"
INSTEAD = "running with the plan 'safe' instead"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanWithinBounds:
    """A plan reduced to what may be applied, and a line for the user about each choice left out."""

    plan: Plan
    lines: tuple[str, ...] = ()


def given(path: Path, risk: Risk | None, command: Sequence[str] = (), keys: Path | None = None) -> PlanWithinBounds:
    """Return the plan in the file that the user names. Without `keys`, the folder of the key, it counts as unproven."""
    plan, is_signed = read(path, keys)
    if not is_signed:
        return _within(replace(plan, proven=None, origin=None), path, risk or Risk.EXACT)
    differs = saved_plan.difference(plan, command)
    if differs is not None:
        return PlanWithinBounds(
            plan=automatic(Risk.EXACT), lines=(f"the plan {path} was proven for {differs}; {INSTEAD}",)
        )
    return _up_to(_as_proven(plan), path, risk)


def found(path: Path, command: Sequence[str], keys: Path | None) -> PlanWithinBounds | None:
    """Return the saved plan of a command, or the safe plan and a line that says why; None if there is no file."""
    try:
        path.lstat()
    except FileNotFoundError:
        return None
    except OSError:
        pass  # reported below
    try:
        private.refuse_what_others_can_change(path)
        plan, is_signed = read(path, keys)
    except (private.Unfit, OSError, PlanUnusable) as error:
        return PlanWithinBounds(plan=automatic(Risk.EXACT), lines=(f"{_reason(error)}; {INSTEAD}",))
    if not is_signed:
        line = f"the plan {path} was not proven by your own hotlap tune; {INSTEAD}; to use it anyway: --plan {path}"
        return PlanWithinBounds(plan=automatic(Risk.EXACT), lines=(line,))
    differs = saved_plan.difference(plan, command)
    if differs is not None:
        return PlanWithinBounds(
            plan=automatic(Risk.EXACT), lines=(f"the plan {path} was proven for {differs}; {INSTEAD}",)
        )
    return PlanWithinBounds(plan=_as_proven(plan))


def _reason(error: Exception) -> str:
    if isinstance(error, PlanUnusable):
        return str(error).partition(";")[0]  # the remedy is for users who named the file themselves
    return f"the saved plan is not used: {error}"


def read(path: Path, keys: Path | None) -> tuple[Plan, bool]:
    """Return the plan in a file, and whether its signature holds."""
    try:
        text = _text(path)
        plan = from_json(Plan, text, str(path), REMEDY)
        fields = json.loads(text)
        _refuse_unknown(fields, json.loads(to_json(plan)), path)
    except private.Unfit as error:
        raise PlanUnusable(f"cannot read the plan: {error}; give a plan file, safe or fast") from error
    except RecordUnreadable as error:
        raise PlanUnusable(f"cannot use the plan: {error}; or use --plan safe") from error
    try:
        for choice in plan.choices:
            check(choice, "it")
        refuse_conflicts(plan.choices)
    except UnknownOptimization as error:
        raise PlanUnusable(f"cannot use the plan {path}: {error}; or use --plan safe") from error
    claims = plan.proven is not None and plan.origin is not None
    return plan, claims and keys is not None and signature.is_signed(fields, keys)


def _text(path: Path) -> str:
    try:
        return private.read(path, LARGEST).decode()
    except UnicodeDecodeError as error:
        raise private.Unfit(f"{path} is not text ({error.reason})") from error


def _refuse_unknown(fields: Any, known: Any, path: Path) -> None:
    """Refuse fields that this version does not know: they may mean that less is to be applied."""
    if isinstance(fields, dict):
        for name, value in fields.items():
            if name not in known:
                raise RecordUnreadable(f"{path} has {name!r}, which this version of hotlap does not know; {REMEDY}")
            _refuse_unknown(value, known[name], path)
    elif isinstance(fields, list):
        for value, known_value in zip(fields, known, strict=True):
            _refuse_unknown(value, known_value, path)


def _as_proven(plan: Plan) -> Plan:
    """Mark all choices as requested by name, which is how a tune tries them."""
    return replace(plan, choices=tuple(replace(choice, asked=True) for choice in plan.choices))


def _up_to(plan: Plan, path: Path, risk: Risk | None) -> PlanWithinBounds:
    """Limit a proven plan to the risk, if the user named one."""
    lines = {} if risk is None else {choice.name: _above(choice, path, risk) for choice in plan.choices}
    return _without(plan, {name: line for name, line in lines.items() if line is not None})


def _within(plan: Plan, path: Path, risk: Risk) -> PlanWithinBounds:
    """Limit an unproven plan to what the plan of that risk could hold."""
    plain = replace(plan, choices=tuple(replace(choice, asked=False) for choice in plan.choices))
    lines = {choice.name: _never(choice, path) or _above(choice, path, risk) for choice in plain.choices}
    return _without(plain, {name: line for name, line in lines.items() if line is not None})


def _without(plan: Plan, lines: dict[str, str]) -> PlanWithinBounds:
    left = tuple(choice for choice in plan.choices if choice.name not in lines)
    return PlanWithinBounds(plan=replace(plan, choices=left), lines=tuple(lines.values()))


def _never(choice: Choice, path: Path) -> str | None:
    entry = entries()[choice.name]
    if entry.automatic and entry.risk is not Risk.TRAINING:
        return None
    typed = choice.name if choice.value is None else f"{choice.name}={choice.value}"
    return f"{choice.name} of the plan {path} is left out: a plan file cannot turn it on; request it: --with {typed}"


def _above(choice: Choice, path: Path, risk: Risk) -> str | None:
    own = entries()[choice.name].risk
    if own.rank <= risk.rank:
        return None
    return f"{choice.name} of the plan {path} is left out: its risk is {own}; allow it: --risk {own}"
