"""Evaluation in large batches, without autograd; the scores are read once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from hotlap.engine.data.errors import DataMismatch
from hotlap.engine.data.sources import with_requested_rows
from hotlap.engine.errors import BadRecipe, EmptySplit
from hotlap.engine.metrics import Metric, read
from hotlap.engine.processes import Processes
from hotlap.engine.seam import AnySource, Batch, Resident
from hotlap.engine.sharding import gather_again, is_sharded
from hotlap.engine.update import Forward


class Evaluation:
    """Evaluates a source; when memory runs out it halves its batches and says so."""

    def __init__(
        self,
        forward: Forward,
        metrics: Mapping[str, Metric],
        batch: int,
        say: Callable[[str], None],
        processes: Processes | None = None,
    ) -> None:
        self.forward, self.metrics, self.batch, self.say, self.processes = forward, metrics, batch, say, processes

    def __call__(self, source: AnySource, device: torch.device) -> dict[str, float]:
        if source.rows == 0:
            raise EmptySplit("the validation split is empty: there is no row to evaluate on")
        while True:
            try:
                return self._scores(source, device)
            except torch.OutOfMemoryError:
                if self.batch == 1:
                    raise
                self.batch = max(1, self.batch // 2)
                self.say(f"evaluation does not fit in memory: using batches of {self.batch} from now on")

    def _scores(self, source: AnySource, device: torch.device) -> dict[str, float]:
        with inferring(self.forward.model):
            for metric in self.metrics.values():
                metric.reset()
            for rows, batch in batches_of(source, self.batch, device, self.processes):
                outputs = self.forward.outputs(batch)
                for metric in self.metrics.values() if rows else ():
                    metric.rows = rows
                    metric.update(outputs, *batch[self.forward.inputs :])
            return read(self.metrics, self.processes)  # host sync: one per evaluation


class EvaluationByStep:
    """Evaluates a source by the loss of a step of the user's own, which keeps the model's outputs to itself."""

    names = ("valid_loss",)

    def __init__(
        self, forward: Forward, source: AnySource, batch: int, device: torch.device, processes: Processes | None = None
    ) -> None:
        self.forward, self.source, self.batch, self.device, self.processes = forward, source, batch, device, processes

    def __call__(self, model: nn.Module) -> dict[str, float]:
        sums = torch.zeros(2, device=self.device)  # of the losses, and of the rows
        for rows, batch in batches_of(self.source, self.batch, self.device, self.processes):
            sums[0] += self.forward(batch)[0]["loss"] * rows
            sums[1] += rows
        if self.processes is not None:
            self.processes.add_up([sums])
        return {"valid_loss": float(sums[0] / sums[1])}  # host sync: one per evaluation


def predicted(forward: Forward, source: AnySource, batch: int, device: torch.device) -> Any:
    """Return the model's outputs for all rows, joined on the host, where they are copied while the device goes on."""
    parts: list[Any] = []
    with inferring(forward.model):
        for rows, inputs in batches_of(source, batch, device):
            parts.append(_on_host(forward.outputs(inputs), rows))
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # host sync: the only one
    return _joined(parts)


def _on_host(outputs: Any, rows: int) -> Any:
    if isinstance(outputs, Tensor):
        if not outputs.dim() or len(outputs) != rows:
            raise BadRecipe(
                f"the model returned shape {list(outputs.shape)} for {rows} rows; predict needs one output per row"
            )
        return outputs.to("cpu", non_blocking=True)
    return _like(outputs, [_on_host(part, rows) for part in parts_of(outputs)])


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.cat(list(parts))
    return _like(parts[0], [_joined(columns) for columns in zip(*map(parts_of, parts), strict=True)])


def parts_of(outputs: Any) -> list[Any]:
    """Return what a model returned besides a tensor, in order."""
    if isinstance(outputs, Mapping):
        return list(outputs.values())
    if isinstance(outputs, list | tuple):
        return list(outputs)
    raise BadRecipe(f"the model returned {type(outputs).__name__}; predict needs tensors, in tuples, lists or dicts")


def _like(outputs: Any, parts: list[Any]) -> Any:
    if isinstance(outputs, Mapping):
        return dict(zip(outputs, parts, strict=True))
    return type(outputs)(*parts) if hasattr(outputs, "_fields") else type(outputs)(parts)


@contextlib.contextmanager
def inferring(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, without autograd. Weights that were put together in torch's inference mode
    could not be trained with afterwards.
    """
    is_shared_out = any(map(is_sharded, model.parameters()))
    with torch.no_grad() if is_shared_out else torch.inference_mode(), evaluating(model):
        yield


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, then return every module to its own: one kept in evaluation mode stays so."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        gather_again(model)


def batches_of(
    source: AnySource, size: int, device: torch.device, processes: Processes | None = None
) -> Iterator[tuple[int, Batch]]:
    """Yield every row of the source in order, with the number of rows of each batch; several processes share the
    batches, and where all must compute equally often, those with fewer get one more that counts no rows. Raise if some
    are missing, since their score would be another.
    """
    first, last, ends_early = 0, source.rows, False
    if processes is not None:
        shares = torch.tensor_split(torch.arange(0, source.rows, size), processes.count)[processes.rank]
        ends_early = processes.shards and len(shares) * processes.count < -(-source.rows // size)
        first = int(shares[0]) if len(shares) else source.rows
        last = min(int(shares[-1]) + size, source.rows) if len(shares) else source.rows
    done = first
    given = _given(source, first, last, size, device) if first < last else ()
    for batch in with_requested_rows(given, last - first, size):
        rows = min(size, last - done)
        done += rows
        yield rows, batch
    if done < last:
        raise DataMismatch(
            f"the data ended early: {done - first} rows came, in batches of {size}, "
            f"but its source reports {source.rows} rows"
        )
    if ends_early:
        stand_in = min(size, source.rows)
        for batch in with_requested_rows(_given(source, 0, stand_in, size, device), stand_in, size):
            yield 0, batch


def _given(source: AnySource, first: int, last: int, size: int, device: torch.device) -> Iterable[Batch]:
    if not hasattr(source, "gather"):
        return source.batches(torch.arange(first, last), size, device, False)
    resident = cast(Resident, source)
    order = torch.arange(first, last, device=device)
    return (resident.gather(order[start : start + size]) for start in range(0, last - first, size))
