"""The reports' hyper-parameters as typed templates: `template("lstm")`, or a file that begins with `template = "lstm"`.

Training with values other than a report's is a different training; the templates say where theirs come from.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from hotlap.engine import config
from hotlap.engine.config import ConfigInvalid, value
from hotlap.engine.recipe import Checkpoints, Phase, Precision, Recipe, Switch
from hotlap.engine.schedule import Cosine, Linear, Schedule


@dataclass(frozen=True)
class TrainingConfig:
    """The fields of the trainer's recipe, and the optimizer's own numbers."""

    batch_size: int = value(at_least=1)
    epochs: int = value(at_least=1)
    learning_rate: float = value(above=0, at_most=10)
    evaluation_batch: int | None = value(None, at_least=1)
    weight_decay: float = value(0.0, at_least=0, below=1)
    accumulate: int = value(1, at_least=1)
    clip: float | None = value(None, above=0)
    precision: Precision = "tf32"
    channels_last: bool = False
    compile: Switch = "auto"
    graph: Switch = "auto"
    drop_last: bool = False
    warmup: int = value(0, at_least=0)
    schedule: Literal["linear", "cosine"] | None = None
    schedule_end: float = value(0.0, at_least=0, at_most=1)
    schedule_by: Literal["step", "epoch"] = "step"
    ema: float | None = value(None, above=0, below=1)
    patience: int | None = value(None, at_least=1)
    seed: int = value(0, at_least=0, at_most=2**64 - 1)  # what torch takes

    def scheduled(self) -> Schedule | None:
        if self.schedule is None:
            return None
        kind = Linear if self.schedule == "linear" else Cosine
        return kind(end=self.schedule_end, by=self.schedule_by)

    def recipe(self, checkpoints: Checkpoints | None = None, **others: Any) -> Recipe:
        """Return the recipe for `Trainer`; `others` are fields that no file should decide, such as `monitor`."""
        names = (
            "batch_size", "evaluation_batch", "accumulate", "clip", "precision", "channels_last", "compile", "graph",
            "drop_last", "warmup", "ema", "patience", "seed",
        )  # fmt: skip
        own = {name: getattr(self, name) for name in names}
        return Recipe(**{**own, "schedule": self.scheduled(), "checkpoints": checkpoints, **others})


@dataclass(frozen=True)
class TwoPhases(TrainingConfig):
    """The head alone is trained first, on the frozen part, at `learning_rate`; then all at `full_learning_rate`."""

    frozen_epochs: int = value(0, at_least=0)
    full_learning_rate: float = value(0.001, above=0, at_most=10)

    def __post_init__(self) -> None:
        if self.frozen_epochs >= self.epochs:
            raise ConfigInvalid(
                f"training.frozen_epochs = {self.frozen_epochs} leaves none of the {self.epochs} epochs "
                "to train everything; use fewer"
            )

    def phases(self, frozen: tuple[str, ...]) -> tuple[Phase, ...]:
        """Return the phases; `frozen` holds the prefixes of the names of the frozen parameters."""
        rest = Phase(self.epochs - self.frozen_epochs, (), self.full_learning_rate, fresh_optimizer=True)
        return (Phase(self.frozen_epochs, frozen, self.learning_rate), rest) if self.frozen_epochs else (rest,)


@dataclass(frozen=True)
class LoadingConfig:
    """Settings for streamed data; resident data needs none of them. None: chosen for the machine."""

    threads: int | None = value(None, at_least=1, at_most=256)
    ahead: int | None = value(None, at_least=2, at_most=1024)


@dataclass(frozen=True)
class RecurrentModel:
    cell: Literal["lstm", "gru"]
    lookback: int = value(at_least=1)
    hidden: int = value(at_least=1)
    layers: int = value(1, at_least=1, at_most=64)
    dropout: float = value(0.0, at_least=0, below=1)


@dataclass(frozen=True)
class FeedForwardModel:
    hidden: int = value(at_least=1)
    layers: int = value(at_least=1, at_most=256)


@dataclass(frozen=True)
class DetectorModel:
    width: float = value(above=0, at_most=4)
    depth: float = value(above=0, at_most=4)


@dataclass(frozen=True)
class RecurrentConfig:
    model: RecurrentModel
    training: TrainingConfig
    loading: LoadingConfig = field(default_factory=LoadingConfig)


@dataclass(frozen=True)
class FeedForwardConfig:
    model: FeedForwardModel
    training: TrainingConfig
    loading: LoadingConfig = field(default_factory=LoadingConfig)


@dataclass(frozen=True)
class DetectorConfig:
    model: DetectorModel
    training: TwoPhases
    loading: LoadingConfig = field(default_factory=LoadingConfig)


@dataclass(frozen=True)
class SegmentsConfig:
    training: TrainingConfig
    loading: LoadingConfig = field(default_factory=LoadingConfig)


Config = RecurrentConfig | FeedForwardConfig | DetectorConfig | SegmentsConfig
SCHEMAS: Mapping[str, type[Config]] = {
    "lstm": RecurrentConfig,
    "lstm-small-memory": RecurrentConfig,
    "gru": RecurrentConfig,
    "fnn": FeedForwardConfig,
    "bloom": FeedForwardConfig,
    "banknotes": DetectorConfig,
    "leak": SegmentsConfig,
}


def template(name: str, **sections: Mapping[str, Any]) -> Any:
    """Return a template with some values changed: `template("lstm", training={"epochs": 5})`."""
    return config.build(schema_of(name, "template"), config.merged(content_of(name), sections), f"template {name}")


def load(path: Path | str) -> Any:
    """Load a file that begins with `template = "…"` and holds only the values it changes."""
    name = template_of(path)
    content = config.parsed(Path(path))
    del content["template"]
    return config.build(SCHEMAS[name], config.merged(content_of(name), content), str(path))


def template_of(path: Path | str) -> str:
    """Return the name of the template that a file begins with."""
    name = config.parsed(Path(path)).get("template")
    if not isinstance(name, str):
        raise ConfigInvalid(f"{path}: template is missing; begin with template = one of {', '.join(SCHEMAS)}")
    schema_of(name, f"{path}: template")
    return name


def schema_of(name: str, where: str) -> type[Config]:
    if name not in SCHEMAS:
        near = difflib.get_close_matches(name.lower(), SCHEMAS, 1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? Use one of" if near else "use one of"
        raise ConfigInvalid(f"{where} = {name!r} is not known; {hint} {', '.join(SCHEMAS)}")
    return SCHEMAS[name]


def content_of(name: str) -> dict[str, Any]:
    file = resources.files("hotlap.engine") / "templates" / f"{name}.json"
    with resources.as_file(file) as path:
        return config.parsed(path)
