"""Finds progress bars redrawn every batch."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.analysis.queries.code import Code, keyword, spread
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability

WORDS = ("set_postfix", "set_description")
SEVERITY = "low"
PREVIEW = True
ONLY_HOT = True


def find(code: Code) -> Iterator[Found]:
    for call in code.calls("set_postfix", "set_postfix_str", "set_description", "set_description_str"):
        if code.hot(call) and keyword(call, "refresh") is None:
            yield Found(
                call,
                f"the progress bar is drawn {code.heat(call).frequency}, however fast the batches are",
                "let the bar draw at its own pace: refresh=False",
                Applicability.DISPLAY_ONLY if spread(call) else Applicability.SAFE,
            )
