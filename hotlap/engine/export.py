"""A trained model as a file for serving, which is called good once its outputs were compared with the model's."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from hotlap.engine.errors import ExportFailed
from hotlap.engine.evaluation import batches_of, evaluating, parts_of
from hotlap.engine.metrics import Metric, read
from hotlap.engine.seam import AnySource, Batch

TENSORRT = (".engine", ".plan", ".trt")
APART = 1e-3  # of the largest output: what another order of additions may change


Loaded = Callable[..., Any]  # computes the outputs of a file's model


def export(
    model: nn.Module,
    source: AnySource,
    inputs: int,
    batch: int,
    device: torch.device,
    path: Path,
    metrics: Mapping[str, Metric],
) -> dict[str, float]:
    """Write the model to `path` by torch.export or as ONNX, for any number of rows; return the metrics of its outputs.

    The file is put in its place once what it computes of every row equals the model's outputs, and so do the metrics.
    """
    if path.suffix in TENSORRT:
        raise ExportFailed(
            f"{path.name} would be a TensorRT engine, which is not written, since its outputs could not be compared; "
            f"export {path.stem}.onnx, then: trtexec --onnx={path.stem}.onnx --saveEngine={path.name}"
        )
    if path.suffix not in FORMATS:
        raise ExportFailed(
            f"{path.name} ends neither in .pt2, the format of torch.export, nor in .onnx; use {path.stem}.pt2"
        )
    write, load, packages = FORMATS[path.suffix]
    _require_packages(path.suffix, packages)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    theirs, own = Scores(metrics, inputs), Scores(metrics, inputs)
    try:
        with torch.no_grad(), evaluating(model):
            example = next(batches_of(source, min(batch, source.rows), device))[1][:inputs]
            _written(model, write, example, temporary)
            loaded = load(temporary)
            for _, rows in batches_of(source, batch, device):
                expected = model(*rows[:inputs])
                found = loaded(expected, *rows[:inputs])
                _require_equal(expected, found)
                theirs.add(found, rows)
                own.add(expected, rows)
        scores = theirs.read()
        _require_equal_scores(own.read(), scores)
        temporary.replace(path)
        return scores
    finally:
        temporary.unlink(missing_ok=True)


def _written(model: nn.Module, write: Callable[..., None], example: Batch, path: Path) -> None:
    dynamic = _by_parameter(model, tuple({0: torch.export.Dim("rows", min=1)} for _ in example))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write(model, example, dynamic, path)
    except Exception as error:
        how = "torch.export" if path.suffix == ".pt2" else "torch.onnx"
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ExportFailed(f"{how} cannot export {type(model).__name__}: {why}") from error


def _write(model: nn.Module, example: Batch, dynamic: Any, path: Path) -> None:
    torch.export.save(torch.export.export(model, example, dynamic_shapes=dynamic), path)


def _load(path: Path) -> Loaded:
    module = torch.export.load(path).module()
    return lambda expected, *inputs: module(*inputs)


def _require_packages(suffix: str, packages: tuple[str, ...]) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ExportFailed(f"{suffix} files need {', '.join(missing)}; type: pip install {' '.join(missing)}")


def _write_onnx(model: nn.Module, example: Batch, dynamic: Any, path: Path) -> None:
    program = torch.onnx.export(model, example, dynamo=True, dynamic_shapes=dynamic, verbose=False)
    assert program is not None
    program.save(path, external_data=False)


def _load_onnx(path: Path) -> Loaded:
    """Return the file's model on the processor, as onnxruntime computes it."""
    session: Any = import_module("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def compute(expected: Any, *inputs: Tensor) -> Any:
        found = session.run(None, {name: given.cpu().numpy() for name, given in zip(names, inputs, strict=True)})
        leaves, form = tree_flatten(expected)
        tensors = [torch.from_numpy(values).to(leaf.device) for values, leaf in zip(found, leaves, strict=True)]
        return tree_unflatten(tensors, form)

    return compute


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


def _require_equal_scores(expected: Mapping[str, float], found: Mapping[str, float]) -> None:
    for name, value in expected.items():
        if not math.isclose(value, found[name], rel_tol=APART, abs_tol=APART) and not math.isnan(value):
            raise ExportFailed(
                f"{name} of the exported model is {found[name]:.6g}, but {value:.6g} of the model, so it was not "
                "written"
            )


class Scores:
    """Metrics of their own, for outputs computed in another way than the trainer does."""

    def __init__(self, metrics: Mapping[str, Metric], inputs: int) -> None:
        self.metrics, self.inputs = copy.deepcopy(dict(metrics)), inputs
        for metric in self.metrics.values():
            metric.alone()
            metric.reset()

    def add(self, outputs: Any, batch: Batch) -> None:
        for metric in self.metrics.values():
            metric.rows = len(batch[0])
            metric.update(outputs, *batch[self.inputs :])

    def read(self) -> dict[str, float]:
        return read(self.metrics)


FORMATS: dict[str, tuple[Callable[..., None], Callable[[Path], Loaded], tuple[str, ...]]] = {
    ".pt2": (_write, _load, ()),
    ".onnx": (_write_onnx, _load_onnx, ("onnx", "onnxscript", "onnxruntime")),
}
