"""Loaders without workers, or with a number of them that no machine was asked about."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.model.scanned import Applicability, Confidence
from hotlap.source import loaders, rounds
from hotlap.source.code import Code
from hotlap.source.rule import Found

WORDS = ("oader(", "DataLoader", "num_workers")


def find(code: Code) -> Iterator[Found]:
    for one in loaders.loaders(code):
        heat = loaders.heat(code, one)
        workers = one.constant("num_workers")
        if one.workers() == "none":
            quick = loaders.in_memory(code, one) or loaders.on_device(code, one)
            if not quick and not rounds.is_glimpsed(code, one):
                yield Found(
                    one.call,
                    "the training process loads every batch itself (num_workers is 0)",
                    "let workers load ahead: num_workers=min(4, os.cpu_count() or 1)",
                    Applicability.UNSAFE
                    if "num_workers" not in one.settings or _written(one)
                    else Applicability.DISPLAY_ONLY,
                    heat,
                )
        elif isinstance(workers, int) and not isinstance(workers, bool):
            yield Found(
                one.call,
                f"{workers} workers whatever the machine",
                f"choose from the cores there are: num_workers=min({workers}, os.cpu_count() or 1)",
                Applicability.UNSAFE if _written(one) else Applicability.DISPLAY_ONLY,
                heat,
                Confidence.MEDIUM,
                {"workers": str(workers)},
            )


def _written(one: loaders.Loader) -> bool:
    """The number stands in the call itself."""
    return any(word.arg == "num_workers" and word.value is one.settings["num_workers"] for word in one.call.keywords)
