"""Interprets the arguments of hotlap.enable(…) like the options of `hotlap run`; no plan can be proven here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import EllipsisType

from hotlap.errors import UnknownOptimization
from hotlap.plan import choose, files
from hotlap.records.plan import Choice, Plan, Risk
from hotlap.records.visible import visible


def named(
    plan: str | EllipsisType | None, risk: str | None, with_: Sequence[str], without: Sequence[str]
) -> tuple[Choice, ...]:
    changes = choose.Changes(with_, without)
    return changes.of(_base(plan, _risk(risk))).choices


def is_automatic(plan: str | EllipsisType | None) -> bool:
    """Return whether the plan is all that a risk allows, which nobody has proven to help here."""
    return plan is ... or plan in choose.WORDS


def _risk(text: str | None) -> Risk | None:
    known = choose.RISKS
    if text is not None and text not in known:
        raise UnknownOptimization(f"there is no risk {text!r}; choose one of {', '.join(known)}")
    return None if text is None else Risk(text)


def _base(plan: str | EllipsisType | None, risk: Risk | None) -> Plan:
    if plan is None and risk is not None:
        raise UnknownOptimization("plan=None applies only what with_ names, so it takes no risk; remove one of them")
    if plan is None:
        return choose.NOTHING
    if is_automatic(plan):
        return choose.automatic(choose.risk_of(None if plan is ... else plan, risk) or Risk.EXACT)
    assert isinstance(plan, str)
    allowed = files.given(Path(plan), risk)
    for line in allowed.lines:
        sys.stderr.write(f"hotlap: {visible(line)}\n")
    return allowed.plan
