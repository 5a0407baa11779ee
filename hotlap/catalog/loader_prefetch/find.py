"""Finds loaders whose workers may not run far ahead."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.analysis.queries import loaders
from hotlap.analysis.queries.code import Code
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = ("oader(", "DataLoader", "num_workers")
SEVERITY = "low"
PREVIEW = True  # it found nothing in 146 repositories that nobody here knew


def find(code: Code) -> Iterator[Found]:
    for loader in loaders.loaders(code):
        if loader.workers() != "some":
            continue
        depth = loader.constant("prefetch_factor")
        if depth == 1:
            message, confidence = "each worker keeps only one batch ready, so the training waits for a slow one", None
        elif "prefetch_factor" not in loader.settings and loader.complete:
            message, confidence = "each worker keeps only two batches ready, torch's default", Confidence.LOW
        else:
            continue
        yield Found(
            loader.call,
            message,
            "allow for uneven loading: prefetch_factor=4",
            Applicability.SAFE if loaders.written_workers(loader.call) is not None else Applicability.DISPLAY_ONLY,
            loaders.heat(code, loader),
            confidence,
        )
