"""The plans `safe` and `fast`, what --with and --without make of them, and plans read from a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from hotlap.catalog import entries, in_conflict, name_of
from hotlap.catalog.entry import NotAValue
from hotlap.errors import PlanUnusable, RecordUnreadable, UnknownOptimization
from hotlap.model.codec import SCHEMA, from_json
from hotlap.model.plan import Choice, Plan, Risk

SAFE, FAST = "safe", "fast"
MOST_RISK = {SAFE: Risk.EXACT, FAST: Risk.ROUNDING}
REMEDY = "make it again with hotlap tune"


def choose(plan: str | None, with_: Sequence[str], without: Sequence[str]) -> Plan:
    """The plan of that name or file (none: only what is asked for), with and without what was named."""
    asked = tuple(_asked(text) for text in with_)
    left_out = {name_of(text) for text in without}
    if both := left_out & {choice.name for choice in asked}:
        raise UnknownOptimization(f"{min(both)} is both in --with and in --without; leave one of them out")
    _refuse_conflicts(asked)
    base = Plan(schema=SCHEMA, title="asked for", choices=()) if plan is None else _named(plan)
    kept = [one for one in base.choices if one.name not in left_out and all(one.name != a.name for a in asked)]
    choices = _without_conflicts([*asked, *kept])
    changed = bool(asked or left_out)
    return replace(base, choices=_ordered(choices), proven=None if changed else base.proven)


def automatic(name: str) -> Plan:
    """All entries up to the risk the name allows; each finds out by itself whether it applies here."""
    allowed = [
        Choice(name=each)
        for each, entry in entries().items()
        if entry.automatic and entry.risk.rank <= MOST_RISK[name].rank
    ]
    return Plan(schema=SCHEMA, title=name, choices=_ordered(_without_conflicts(allowed)))


def read(path: Path) -> Plan:
    try:
        plan = from_json(Plan, path.read_text(encoding="utf-8"), str(path), REMEDY)
    except (OSError, UnicodeDecodeError) as error:
        raise PlanUnusable(f"cannot read the plan {path} ({error}); name a file, safe or fast") from error
    except RecordUnreadable as error:
        raise PlanUnusable(f"{error}; or use --plan safe") from error
    try:
        for choice in plan.choices:
            _check(choice, "it")
        _refuse_conflicts(plan.choices)
    except UnknownOptimization as error:
        raise PlanUnusable(f"cannot use the plan {path}: {error}; or use --plan safe") from error
    return plan


def variables(choices: Iterable[Choice], environ: Mapping[str, str]) -> dict[str, str]:
    """What must be in the command's environment before it starts. What the user has set stays."""
    found: dict[str, str] = {}
    for choice in choices:
        entry = entries()[choice.name]
        if entry.environment is not None:
            found.update(entry.environment(entry.parse(choice.value), environ))
    return {name: value for name, value in found.items() if name not in environ}


def _named(plan: str) -> Plan:
    if not plan:
        raise PlanUnusable("--plan is empty; name a file, safe or fast")
    return automatic(plan) if plan in MOST_RISK else read(Path(plan))


def _asked(text: str) -> Choice:
    name, equals, value = text.partition("=")
    choice = Choice(name=name_of(name), value=value if equals else None, asked=True)
    _check(choice, f"--with {text}")
    return choice


def _check(choice: Choice, source: str) -> None:
    if choice.name not in entries():
        raise UnknownOptimization(f"{source} names {choice.name}, which this hotlap does not have; see: hotlap list")
    try:
        entries()[choice.name].parse(choice.value)
    except NotAValue as error:
        raise UnknownOptimization(f"{source}: {error}; see: hotlap explain {choice.name}") from error


def _refuse_conflicts(asked: Iterable[Choice]) -> None:
    for one, other in combinations(asked, 2):
        if one.name == other.name:
            raise UnknownOptimization(f"{one.name} is asked for twice; leave one of them out")
        if in_conflict(one.name, other.name):
            raise UnknownOptimization(f"{one.name} and {other.name} exclude each other; leave one of them out")


def _without_conflicts(choices: Sequence[Choice]) -> list[Choice]:
    """The first of two that exclude each other stays."""
    kept: list[Choice] = []
    for choice in choices:
        if not any(in_conflict(choice.name, one.name) for one in kept):
            kept.append(choice)
    return kept


def _ordered(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    order = list(entries())
    return tuple(sorted(choices, key=lambda choice: order.index(choice.name)))
