"""A trained model as a file for serving, which is called good once its outputs were compared with the model's."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hotlap.engine.errors import ExportFailed
from hotlap.engine.evaluation import batches_of, evaluating, parts_of
from hotlap.engine.metrics import Metric, read
from hotlap.engine.seam import AnySource, Batch

APART = 1e-3  # of the largest output: what another order of additions may change


def export(
    model: nn.Module, source: AnySource, inputs: int, batch: int, device: torch.device, path: Path
) -> Iterator[tuple[Any, Batch]]:
    """Write the model to `path` by torch.export, for any number of rows. Yield the outputs of the file's model for
    every batch of the source, with the batch; the file is put in its place once all of them equal the model's.
    """
    if path.suffix != ".pt2":
        raise ExportFailed(f"{path.name} does not end in .pt2, the format of torch.export; use {path.stem}.pt2")
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.pt2")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with torch.no_grad(), evaluating(model):
            _write(model, next(batches_of(source, min(batch, source.rows), device))[1][:inputs], temporary)
            loaded = torch.export.load(temporary).module()
            for _, rows in batches_of(source, batch, device):
                found = loaded(*rows[:inputs])
                _require_equal(model(*rows[:inputs]), found)
                yield found, rows
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(model: nn.Module, example: Batch, path: Path) -> None:
    dynamic = tuple({0: torch.export.Dim("rows", min=1)} for _ in example)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(model, example, dynamic_shapes=_by_parameter(model, dynamic))
            torch.export.save(program, path)
    except Exception as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ExportFailed(f"torch.export cannot export {type(model).__name__}: {why}") from error


def _by_parameter(model: nn.Module, dynamic: tuple[Any, ...]) -> Any:
    """Return the shapes as torch.export wants them: a forward that takes *inputs has one parameter for all."""
    code = getattr(type(model).forward, "__code__", None)
    takes_any = code is not None and code.co_flags & 0x04 and code.co_argcount == 1
    return (dynamic,) if takes_any else dynamic


def _require_equal(expected: Any, found: Any) -> None:
    for one, other in zip(_tensors(expected), _tensors(found), strict=True):
        if one.shape != other.shape:
            raise ExportFailed(f"the exported model returns shape {list(other.shape)}, but the model {list(one.shape)}")
        if not one.numel():
            continue
        apart = float((one.double() - other.double()).abs().max())
        if not apart <= APART * float(one.double().abs().max()):
            raise ExportFailed(f"the exported model differs from the model by up to {apart:.3g}, so it was not written")


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
        return
    for part in parts_of(outputs):
        yield from _tensors(part)


def scored(outputs: Iterator[tuple[Any, Batch]], inputs: int, metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Return the metrics of these outputs."""
    own = copy.deepcopy(dict(metrics))
    for metric in own.values():
        metric.alone()
        metric.reset()
    for found, batch in outputs:
        for metric in own.values():
            metric.rows = len(batch[0])
            metric.update(found, *batch[inputs:])
    return read(own)
