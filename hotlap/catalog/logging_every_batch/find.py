"""A line, a scalar or a row written every batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Side
from hotlap.analysis.queries import hundredth, logs
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.rule import Found
from hotlap.analysis.queries.syncs import shown
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = ("print(", "log(", "info(", "write(", "add_scalar", "add_histogram", "log_metric", "writerow", "add_image")
ONLY_HOT = True
PREVIEW = True


def find(code: Code) -> Iterator[Found]:
    written: set[ast.AST | None] = set()  # functions that put a line together by several calls of `write`
    for call in sorted(logs.lines(code), key=lambda call: (call.lineno, call.col_offset)):
        if not code.hot(call):
            continue
        if last_name(call.func) == "write":
            if code.function(call) in written:
                continue
            written.add(code.function(call))
        few = hundredth.is_of_few(code, call)
        hints = _hints(code, call)
        rare = few and len(list(code.loops(call))) == 1
        yield Found(
            call,
            f"`{shown(call, 40)}` writes {code.heat(call).frequency} on the training thread",
            "write only every hundredth batch",
            Applicability.UNSAFE if hints else Applicability.DISPLAY_ONLY,
            confidence=Confidence.LOW if _is_seldom(code, call) or logs.on_event(code, call) or rare else None,
            hints=hints,
        )


def _is_seldom(code: Code, call: ast.Call) -> bool:
    """Whether it may well be rare: behind two conditions, or outside what is certain to train."""
    heat = code.heat(call)
    return heat.maybes > 1 or heat.side is not Side.TRAIN or heat.confidence is not Confidence.HIGH


def _hints(code: Code, call: ast.Call) -> dict[str, str]:
    """Return what the repair needs, or {} if the call is not a statement of its own in a loop over batches."""
    statement = code.statement(call)
    return hundredth.hints(code, call) if isinstance(statement, ast.Expr) and statement.value is call else {}
