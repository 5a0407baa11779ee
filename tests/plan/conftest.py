"""A catalogue of seven entries, so that these tests do not change with the real one."""

from __future__ import annotations

import pytest

from hotlap import catalog
from hotlap.catalog.entry import Entry, OneOf, Stage, WholeNumber
from hotlap.plan import choose, files, needs
from hotlap.records.plan import Risk


def entry(code, risk, **more) -> Entry:
    return Entry(code=code, title=code, risk=risk, apply=lambda site: None, detect=lambda seen: None, **more)


@pytest.fixture
def catalogue(monkeypatch):
    found = {
        "early": entry("X101", Risk.EXACT, stage=Stage.PROCESS, values=WholeNumber(1, 8)),
        "exact": entry("X102", Risk.EXACT, environment=lambda value, environ: {"THREADS": "2", "OTHER": "1"}),
        "fused": entry("X103", Risk.ROUNDING, conflicts=frozenset({"graphs"}), values=OneOf(("a", "b"))),
        "graphs": entry("X104", Risk.ROUNDING, device="cuda"),
        "half": entry("X105", Risk.NUMERIC),
        "bigger-batch": entry("X106", Risk.TRAINING),
        "manual": entry("X107", Risk.EXACT, automatic=False, stage=Stage.LAST),
    }
    for module in (catalog, choose, files, needs):
        monkeypatch.setattr(module, "entries", lambda: found)
    return found
