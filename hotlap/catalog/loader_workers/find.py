"""Finds loaders without workers, or with a fixed number of them whatever the machine."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.features import NO_WORKERS, SOME_WORKERS, SPLITS
from hotlap.analysis.queries import counts, loaders, rounds
from hotlap.analysis.queries.code import Code, last_name
from hotlap.analysis.queries.defaults import is_left_at
from hotlap.analysis.queries.entries import may_start
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = ("oader(", "DataLoader", "num_workers")
SEVERITY = "high"
_USUAL = 4  # a bound that leaves cores to the training on most machines


def find(code: Code) -> Iterator[Found]:
    for loader in loaders.loaders(code):
        heat = loaders.heat(code, loader)
        workers = loader.constant("num_workers")
        left = is_left_at(code, loader.settings.get("num_workers"), 0) or _is_none_by_default(code, loader)
        if loader.workers() == "unknown" and not left:
            continue
        quick = loaders.in_memory(code, loader) or loaders.on_device(code, loader)
        if loader.workers() == "none" or left:
            if not quick and not rounds.is_glimpsed(code, loader):
                yield Found(
                    loader.call,
                    f"the training process loads every batch itself (num_workers is 0{' by default' if left else ''})",
                    f"let workers load ahead: num_workers=min({_USUAL}, os.cpu_count() or 1)",
                    Applicability.UNSAFE
                    if ("num_workers" not in loader.settings or (_written(loader) and not left))
                    and may_start(code, loader.call)
                    and not _may_stream(code, loader)
                    else Applicability.DISPLAY_ONLY,
                    heat,
                    Confidence.LOW
                    if rounds.is_tried_once(code, loader)
                    or _is_whole_stream(code, loader)
                    or _is_explained(code, loader)
                    else None,
                )
        elif isinstance(workers, int) and not isinstance(workers, bool):
            most = max(workers, _USUAL)
            yield Found(
                loader.call,
                f"the number of workers is fixed at {workers}, whatever the machine",
                f"adapt it to the number of cores: num_workers=min({most}, os.cpu_count() or 1)",
                Applicability.UNSAFE
                if _written(loader) and may_start(code, loader.call) and not _may_stream(code, loader)
                else Applicability.DISPLAY_ONLY,
                heat,
                Confidence.LOW,  # somebody chose it
                {"workers": str(most)},
            )


def _is_explained(code: Code, loader: loaders.Loader) -> bool:
    """Match `num_workers=0` with a comment beside or above it that speaks of workers: somebody had a reason."""
    value = loader.settings.get("num_workers")
    if value is None or not _written(loader):
        return False
    above = code.lines[max(loader.call.lineno - 2, 0)].strip()
    comments = (code.lines[value.lineno - 1].partition("#")[2], above if above.startswith("#") else "")
    return any("worker" in comment.lower() for comment in comments)


def _written(loader: loaders.Loader) -> bool:
    """Return whether the number is written in the call itself."""
    return any(
        keyword.arg == "num_workers" and keyword.value is loader.settings["num_workers"]
        for keyword in loader.call.keywords
    )


def _is_none_by_default(code: Code, loader: loaders.Loader) -> bool:
    """Match a number that comes from an option, a table or a choice, each of which gives 0 where nobody says more."""
    value = loader.settings.get("num_workers")
    if value is None or isinstance(value, ast.Constant):
        return False
    if counts.number(code, value) == 0:
        return True
    unseen = isinstance(value, ast.Attribute) and "worker" in value.attr and counts.number(code, value) is None
    return unseen and code.project_uses(NO_WORKERS) and not code.project_uses(SOME_WORKERS)


def _may_stream(code: Code, loader: loaders.Loader) -> bool:
    """Match what may be a stream, by its class or its name: unless it is split, every worker repeats all of it."""
    dataset = loader.settings.get("dataset")
    name = last_name(dataset).lower() if dataset is not None else ""
    return any(word in name for word in ("iter", "stream", "pipe")) or _is_whole_stream(code, loader)


def _is_whole_stream(code: Code, loader: loaders.Loader) -> bool:
    """Match an IterableDataset of the project that does not ask which worker it is in: each would repeat all of it."""
    dataset = loader.settings.get("dataset")
    term = code.project.answer(code.asked(dataset), code.path) if dataset is not None else ""
    found = code.project.class_of(term, code.path)
    if found is None:
        return False
    streams = any("IterableDataset" in owner.base_names for _, owner in code.project.lineage(*found))
    return streams and not any(SPLITS in code.project.files[path].uses for path, _ in code.project.lineage(*found))
