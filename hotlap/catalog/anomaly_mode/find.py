"""Finds anomaly mode that was left on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.parse.positions import position_of
from hotlap.analysis.queries.code import Code, is_constant, keyword
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence, Frequency, Step

WORDS = ("detect_anomaly",)
TESTS = False
SEVERITY = "high"
_SWITCH = frozenset(("torch.autograd.set_detect_anomaly", "torch.autograd.anomaly_mode.set_detect_anomaly"))
_CONTEXT = frozenset(("torch.autograd.detect_anomaly", "torch.autograd.anomaly_mode.detect_anomaly"))


def find(code: Code) -> Iterator[Found]:
    for call in code.calls("set_detect_anomaly", "detect_anomaly"):
        name = code.full_name(call.func)
        if (name in _SWITCH and _is_on(call)) or name in _CONTEXT:
            yield from _found(code, call)
    for call in code.calls("Trainer"):
        if is_constant(keyword(call, "detect_anomaly"), True):
            yield from _found(code, call)


def _is_on(call: ast.Call) -> bool:
    given = call.args[0] if call.args else keyword(call, "mode")
    return isinstance(given, ast.Constant) and bool(given.value)


def _found(code: Code, call: ast.Call) -> Iterator[Found]:
    here = code.heat(call)
    if here.frequency is Frequency.NEVER:
        return
    hints = _hints(code, call)
    yield Found(
        call,
        "anomaly mode keeps a stack trace of every operation and looks for NaN in every gradient",
        "remove it, and switch it on only to track down a NaN",
        Applicability.UNSAFE if hints else Applicability.DISPLAY_ONLY,
        Heat(
            Frequency.BATCH, _confidence(code, call), Side.TRAIN, (Step(code.path, call.lineno, "left on from here"),)
        ),
        hints=hints,
    )


def _confidence(code: Code, call: ast.Call) -> Confidence:
    """Return a low confidence behind a switch of the user's, where anomaly mode is not simply left on."""
    if code.heat(call).confidence is Confidence.LOW or _behind_switch(code, call):
        return Confidence.LOW
    return Confidence.HIGH if code.trains() else Confidence.MEDIUM


def _behind_switch(code: Code, call: ast.Call) -> bool:
    for outer in code.ancestors(call):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if isinstance(outer, ast.If | ast.IfExp) and not _is_certain(outer.test):
            return True
    return False


def _is_certain(test: ast.expr) -> bool:
    """Whether a test is `if True` or `if __name__ == "__main__"`."""
    return isinstance(test, ast.Constant) or "__name__" in ast.unparse(test)


def _hints(code: Code, call: ast.Call) -> dict[str, str]:
    if keyword(call, "detect_anomaly") is not None:
        return {"argument": "yes"}
    statement = code.statement(call)
    if isinstance(statement, ast.Expr) and statement.value is call:
        return {"remove": position_of(statement, code.lines)}
    if isinstance(statement, ast.With) and len(statement.items) == 1 and statement.items[0].optional_vars is None:
        return {"dissolve": position_of(statement, code.lines)}
    return {}
