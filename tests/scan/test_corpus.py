"""Each rule finds the lines that tests/scan/corpus/*.md marks, and no others."""

from __future__ import annotations

from collections import Counter

import pytest

from hotlap import scanning
from hotlap.analysis.parse.files import Source
from hotlap.catalog import patterns
from hotlap.scanning import FindingFilter
from tests.scan.corpus import Case, cases

CASES = cases()


def found(case: Case) -> set[tuple[str, int]]:
    sources = [
        Source(name, name.removesuffix(".py").replace("/", "."), False, text) for name, text in case.files.items()
    ]
    result = scanning.scan(sources, FindingFilter(select=(case.code,)))
    assert not result.unread
    return {(finding.path, finding.line) for finding in result.findings}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_marked_line_is_found_and_no_other(case):
    assert case.files, "a case without a program"
    assert bool(case.expected()) == (case.section == "Found")
    assert found(case) == case.expected()


def test_every_rule_has_five_cases_to_find_and_five_to_leave_alone():
    counted = Counter((case.code, case.section) for case in CASES)
    lacking = [
        f"{code} {section}"
        for code in patterns.rules()
        for section in ("Found", "Silent")
        if counted[code, section] < 5
    ]
    assert not lacking
