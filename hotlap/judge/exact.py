"""EXACT: every loss must be the same, bit by bit."""

from __future__ import annotations

from hotlap.judge.curves import Curves, first_difference
from hotlap.records.plan import Risk
from hotlap.records.verdict import Gate


def exact(found: Curves) -> Gate:
    """Reject a differing loss only if the baseline is known to repeat itself; gates.py handles one that does not."""
    seeds = "1 seed" if len(found.seeds) == 1 else f"{len(found.seeds)} seeds"
    rule = f"losses bit-equal over {found.steps} steps, {seeds}"
    difference = _first(found)
    if difference is None:
        return Gate(risk=Risk.EXACT, passed=True, rule=rule, why="every loss is the same, bit by bit")
    if found.repeats is None:
        why = f"{difference}, and it is not known whether the baseline repeats itself: no seed was run twice"
        return Gate(risk=Risk.EXACT, passed=None, rule=rule, why=why, more=1)
    return Gate(risk=Risk.EXACT, passed=False, rule=rule, why=f"{difference}, while the baseline repeats itself")


def _first(found: Curves) -> str | None:
    for seed in found.seeds:
        for curve in (*found.new[seed], *found.base[seed]):
            step = first_difference(found.base[seed][0], curve)
            if step is not None:
                return f"the loss of step {step} is {curve[step]!r} instead of {found.base[seed][0][step]!r}"
    return None
