"""What hotlap.enable(…) means: the words of `hotlap run`, without a command that a plan could be proven for."""

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
    """All that a risk allows, which nobody has proven to help here."""
    return plan is ... or plan in choose.WORDS


def _risk(text: str | None) -> Risk | None:
    known = [risk.value for risk in choose.RISKS]
    if text is not None and text not in known:
        raise UnknownOptimization(f"no risk is called {text!r}; there are {', '.join(known)}")
    return None if text is None else Risk(text)


def _base(plan: str | EllipsisType | None, risk: Risk | None) -> Plan:
    if plan is None and risk is not None:
        raise UnknownOptimization("plan=None applies nothing but with_, so no risk goes with it; leave one of them out")
    if plan is None:
        return choose.NOTHING
    if is_automatic(plan):
        return choose.automatic(choose.risk_of(None if plan is ... else plan, risk) or Risk.EXACT)
    assert isinstance(plan, str)
    allowed = files.given(Path(plan), risk)
    for line in allowed.lines:
        sys.stderr.write(f"hotlap: {visible(line)}\n")
    return allowed.plan
