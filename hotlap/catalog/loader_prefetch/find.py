"""Loaders whose workers are not allowed to run ahead."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.analysis.queries import loaders
from hotlap.analysis.queries.code import Code
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = ("oader(", "DataLoader", "num_workers")


def find(code: Code) -> Iterator[Found]:
    for loader in loaders.loaders(code):
        if loader.workers() != "some":
            continue
        depth = loader.constant("prefetch_factor")
        if depth == 1:
            message, confidence = "each worker keeps one batch ready: a slow one is waited for", None
        elif "prefetch_factor" not in loader.settings and loader.complete:
            message, confidence = "each worker keeps two batches ready, torch's default", Confidence.LOW
        else:
            continue
        yield Found(
            loader.call,
            message,
            "allow for uneven loading: prefetch_factor=4",
            Applicability.SAFE,
            loaders.heat(code, loader),
            confidence,
        )
