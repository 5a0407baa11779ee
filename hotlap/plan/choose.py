"""Chooses the plan for a risk, applies --with and --without to it, and refuses contradictions before the start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from hotlap.catalog import entries, in_conflict, name_of
from hotlap.catalog.entry import NotAValue
from hotlap.errors import UnknownOptimization
from hotlap.records.codec import SCHEMA
from hotlap.records.plan import Choice, Plan, Risk

SAFE, FAST = "safe", "fast"
WORDS = {SAFE: Risk.EXACT, FAST: Risk.ROUNDING}  # other names for a risk
RISKS = (Risk.EXACT, Risk.ROUNDING, Risk.NUMERIC)  # what changes the recipe is never automatic
TITLES = RISKS  # titles of unproven plans, which hold all that a risk allows
NOTHING = Plan(schema=SCHEMA, title="asked for", choices=())


class Changes:
    """The changes that --with and --without make to a plan."""

    def __init__(self, with_: Sequence[str], without: Sequence[str]) -> None:
        self.asked = tuple(_requested(text) for text in with_)
        self.left_out = {name_of(text) for text in without}
        if both := self.left_out & {choice.name for choice in self.asked}:
            raise UnknownOptimization(f"{min(both)} is both in --with and in --without; remove it from one of them")
        refuse_conflicts(self.asked)

    def of(self, base: Plan) -> Plan:
        """Apply the changes: what remains of a proven plan stays as proven, and requested choices win conflicts."""
        named = self.left_out | {choice.name for choice in self.asked}
        remaining = [choice for choice in base.choices if choice.name not in named]
        return replace(base, choices=_ordered(_without_conflicts([*self.asked, *remaining])))


def risk_of(plan: str | None, risk: Risk | None) -> Risk | None:
    """Return the risk that both options mean together, or None where neither names one."""
    meant = WORDS.get(plan or "")
    if meant is None or risk is None or meant is risk:
        return meant or risk
    raise UnknownOptimization(f"--plan {plan} means --risk {meant}, not {risk}; remove one of them")


def automatic(risk: Risk) -> Plan:
    """Return a plan of all automatic entries up to the risk; each finds out by itself whether it applies here."""
    allowed = [
        Choice(name=name)
        for name, entry in entries().items()
        if entry.automatic and entry.risk.rank <= risk.rank and entry.risk is not Risk.TRAINING
    ]
    return Plan(schema=SCHEMA, title=risk, choices=_ordered(_without_conflicts(allowed)))


def at_start(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """Return the choices that are in force from the start, where the others are decided during training."""
    return tuple(choice for choice in choices if choice.asked)


def variables(choices: Iterable[Choice], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set before the command starts, without those that the user has set."""
    found: dict[str, str] = {}
    for choice in choices:
        entry = entries()[choice.name]
        if entry.environment is not None:
            found.update(entry.environment(entry.parse(choice.value), environ))
    return {name: value for name, value in found.items() if name not in environ}


def _requested(text: str) -> Choice:
    name, equals, value = text.partition("=")
    choice = Choice(name=name_of(name), value=value if equals else None, asked=True)
    check(choice, f"--with {text}")
    return choice


def check(choice: Choice, source: str) -> None:
    if choice.name not in entries():
        raise UnknownOptimization(
            f"{source} names {choice.name}, which this version of hotlap does not have; see: hotlap list"
        )
    try:
        entries()[choice.name].parse(choice.value)
    except NotAValue as error:
        raise UnknownOptimization(f"{source}: {error}; see: hotlap explain {choice.name}") from error


def refuse_conflicts(requested: Iterable[Choice]) -> None:
    for choice, later in combinations(requested, 2):
        if choice.name == later.name:
            raise UnknownOptimization(f"{choice.name} is requested twice; remove one of them")
        if in_conflict(choice.name, later.name):
            raise UnknownOptimization(f"{choice.name} and {later.name} exclude each other; remove one of them")


def _without_conflicts(choices: Sequence[Choice]) -> list[Choice]:
    """Keep the first of any two choices that exclude each other."""
    compatible: list[Choice] = []
    for choice in choices:
        if not any(in_conflict(choice.name, earlier.name) for earlier in compatible):
            compatible.append(choice)
    return compatible


def _ordered(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    order = list(entries())
    return tuple(sorted(choices, key=lambda choice: order.index(choice.name)))
