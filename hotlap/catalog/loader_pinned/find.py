"""Finds loaders whose batches are copied to the GPU from pageable memory."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.features import ACCELERATED, MOVES
from hotlap.analysis.queries import loaders, programs, rounds
from hotlap.analysis.queries.code import Code, spread
from hotlap.analysis.queries.defaults import is_left_at
from hotlap.analysis.queries.memory import makes_samples
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence

WORDS = ("oader(", "DataLoader", "num_workers")


def find(code: Code) -> Iterator[Found]:
    here = MOVES in code.project.files[code.path].uses
    if not (here or code.project_uses(MOVES)) or not programs.of(code).own_mentions(code.path, ACCELERATED):
        return
    for loader in loaders.loaders(code):
        left = is_left_at(code, loader.settings.get("pin_memory"), False)
        if (
            not (loader.lacks("pin_memory") or left)
            or loaders.on_device(code, loader)
            or rounds.is_glimpsed(code, loader)
        ):
            continue
        chosen = "pin_memory" in loader.settings
        yield Found(
            loader.call,
            "its batches are copied to the GPU from pageable memory, so every copy blocks",
            f"pin them where the argument is passed: {ast.unparse(loader.settings['pin_memory'])}=True" if left
            else "pin them: pin_memory=True",
            Applicability.DISPLAY_ONLY if left or spread(loader.call)
            else Applicability.UNSAFE if chosen else Applicability.SAFE,
            loaders.heat(code, loader),
            _confidence(code, loader, here and not chosen),
        )  # fmt: skip


def _confidence(code: Code, loader: loaders.Loader, sure: bool) -> Confidence | None:
    if _is_explained(code, loader) or _is_light(code, loader):
        return Confidence.LOW
    return None if sure else Confidence.MEDIUM


def _is_explained(code: Code, loader: loaders.Loader) -> bool:
    """Match `pin_memory=False,  # runs out of memory`, a file that pins elsewhere, or a value set elsewhere."""
    value = loader.settings.get("pin_memory")
    if value is None or not isinstance(value, ast.Constant):
        return False
    written = any(keyword.value is value for keyword in loader.call.keywords)
    return (
        not written
        or "pin_memory=True" in code.text
        or value.value is None
        or "#" in code.lines[value.lineno - 1][value.col_offset :]
    )


def _is_light(code: Code, loader: loaders.Loader) -> bool:
    """Match loaders of in-memory rows without workers, or read only once: pinning may cost what it saves."""
    dataset = loader.settings.get("dataset")
    if rounds.is_tried_once(code, loader):
        return True
    if loader.workers() != "none" or not loaders.in_memory(code, loader):
        return False
    given = isinstance(dataset, ast.Name) and dataset.id != "self"
    put_together = given and not loader.lacks("collate_fn") and makes_samples(code, dataset)
    return not put_together and not makes_samples(code, dataset, "torch.tensor", "torch.FloatTensor")
