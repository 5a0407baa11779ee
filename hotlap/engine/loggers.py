"""Sinks that hand the records of a training to a tracker of experiments; each needs its package."""

from __future__ import annotations

import importlib
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from hotlap.engine.errors import EngineError
from hotlap.engine.log import Record
from hotlap.engine.records import StepRecord


class _Scalars:
    """Hands over the numbers of a record with the step it belongs to."""

    def write(self, record: Record) -> None:
        step = record.step if isinstance(record, StepRecord) else record.steps
        self.send(dict(scalars(record)), step)

    def send(self, values: dict[str, float], step: int) -> None:
        raise NotImplementedError


class TensorBoard(_Scalars):
    """Write scalars by step under `step/`, `epoch/` and, for training metrics, `train/`; needs the package tensorboard.

    Where a name is taken under `epoch/`, a part of the loss goes under `part/`, and a score under `valid/`.
    """

    def __init__(self, folder: Path | str) -> None:
        self._writer = _package("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def send(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB(_Scalars):
    """Log to Weights & Biases under the names of TensorBoard, with any settings of wandb.init, such as mode="offline".

    `run` is the run it begins.
    """

    def __init__(self, project: str, **settings: Any) -> None:
        self.run = _package("wandb", "wandb").init(project=project, **settings)

    def send(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow(_Scalars):
    """Log to MLflow under the names of TensorBoard; `store` is a folder or an address, as MLFLOW_TRACKING_URI is.

    `run` is the run it begins, in a client of its own: the program's active run stays what it is.
    """

    def __init__(self, experiment: str, *, name: str | None = None, store: Path | str | None = None) -> None:
        package = _package("mlflow", "mlflow")
        self._client = package.MlflowClient(None if store is None else str(store))
        known = self._client.get_experiment_by_name(experiment)
        number = known.experiment_id if known is not None else self._client.create_experiment(experiment)
        self.run = self._client.create_run(number, run_name=name)

    def send(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            if math.isfinite(value):  # its files and databases take no other numbers
                self._client.log_metric(self.run.info.run_id, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self.run.info.run_id)


def scalars(record: Record) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record with their names."""
    if isinstance(record, StepRecord):
        yield from _named("step", {"loss": record.loss, **record.losses})
        return
    own = {"loss": record.loss, "seconds": record.seconds, "learning_rate": record.learning_rate}
    yield from _named("epoch", own)
    yield from _apart("part", record.losses, own)
    yield from _apart("valid", record.scores, {*own, *record.losses})
    yield from _named("train", record.train_scores)


def _apart(kind: str, values: dict[str, float], names: Collection[str]) -> Iterator[tuple[str, float]]:
    """Name values under `epoch/`, or under `kind` where the name is taken."""
    for name, value in values.items():
        yield f"{kind if name in names else 'epoch'}/{name}", value


def _named(kind: str, values: dict[str, float]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        yield f"{kind}/{name}", value


def _package(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EngineError(f"this log needs the package {package}; type: pip install {package}") from error
