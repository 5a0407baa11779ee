"""Finds gradients that are overwritten with zeros at each step instead of dropped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.queries.code import Code, is_constant, keyword
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Frequency

WORDS = ("zero_grad",)
SEVERITY = "low"


def find(code: Code) -> Iterator[Found]:
    for call in code.calls("zero_grad"):
        if not isinstance(call.func, ast.Attribute) or code.heat(call).frequency is not Frequency.BATCH:
            continue
        named = keyword(call, "set_to_none")
        if is_constant(named, False) or (len(call.args) == 1 and is_constant(call.args[0], False)):
            yield Found(
                call,
                "every gradient is overwritten with zeros, which backward reads again to add to",
                "remove the argument, unless momentum or weight decay must keep moving parameters without a gradient",
                Applicability.UNSAFE if named is not None else Applicability.DISPLAY_ONLY,
            )
