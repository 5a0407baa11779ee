"""Finds arguments that DataLoader rejects."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.queries import loaders
from hotlap.analysis.queries.code import Code
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability

WORDS = ("oader(", "DataLoader", "num_workers")
SEVERITY = "low"
PREVIEW = True  # it found nothing in 146 repositories that nobody here knew
_KNOWN = frozenset((*loaders.POSITIONS, "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order"))
_WITH_BATCH_SAMPLER = ("shuffle", "sampler", "drop_last")


def find(code: Code) -> Iterator[Found]:
    for loader in loaders.loaders(code):
        for name, why, value in _refused(loader):
            written = any(keyword.arg == name for keyword in loader.call.keywords)
            yield Found(
                loader.call,
                f"torch rejects {name} here: {why}",
                f"set {name}={value}" if value else f"leave {name} out",
                Applicability.SAFE if written else Applicability.DISPLAY_ONLY,
                loaders.heat(code, loader),
                hints={"name": name, "value": value},
            )
            break  # one finding per call; the next round finds the next


def _refused(loader: loaders.Loader) -> Iterator[tuple[str, str, str]]:
    for name in loader.settings if loader.direct else ():
        if name not in _KNOWN:
            hint = "it belongs to Tensor.to" if name == "non_blocking" else "DataLoader has no such argument"
            yield name, hint, ""
    if loader.workers() == "none" and loader.complete:
        if loader.constant("persistent_workers") is True:
            yield "persistent_workers", "there are no workers to keep", ""
        if isinstance(loader.constant("prefetch_factor"), int):
            yield "prefetch_factor", "there are no workers to fetch ahead", ""
    if "sampler" in loader.settings and loader.constant("shuffle") is True and not _is_none(loader.settings["sampler"]):
        yield "shuffle", "the sampler decides the order", ""
    if "batch_sampler" in loader.settings and not _is_none(loader.settings["batch_sampler"]):
        for name in _WITH_BATCH_SAMPLER:
            if name in loader.settings and (name == "sampler" or loader.constant(name) is True):
                yield name, "the batch sampler already decides it", ""


def _is_none(value: ast.expr) -> bool:
    """Return whether the value is or may be None."""
    return not isinstance(value, ast.Call) or (isinstance(value, ast.Constant) and value.value is None)
