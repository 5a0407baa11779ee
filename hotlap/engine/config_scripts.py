"""`--config FILE|TEMPLATE` for a training script: a typed configuration below the script's own options, which win.

given = configured(arguments, ("lstm", "gru"))
options = parser.parse_args(given.arguments())
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from hotlap.engine import config_templates
from hotlap.engine.config import ConfigInvalid
from hotlap.engine.config_templates import SCHEMAS, LoadingConfig, TrainingConfig
from hotlap.engine.log import to_stderr

SHARED = ("epochs", "batch_size", "learning_rate", "seed")


@dataclass(frozen=True)
class ScriptArguments:
    """`config` is None where none was named; `rest` are the arguments without it."""

    config: Any
    rest: list[str]

    @property
    def training(self) -> TrainingConfig | None:
        return None if self.config is None else self.config.training

    def arguments(self, **others: object) -> list[str]:
        """For the script's own parser: what the configuration says, then the user's options. None says nothing."""
        if self.training is None:
            return self.rest
        values = {name: getattr(self.training, name) for name in SHARED} | others
        told = {name.replace("_", "-"): value for name, value in values.items() if value is not None}
        return [word for name, value in told.items() for word in (f"--{name}", str(value))] + self.rest

    def settled(self, settings: object, device: torch.device, usual: TrainingConfig, **decided: Any) -> TrainingConfig:
        """The configuration, or the `usual` training without one; what the script's options decided since wins.

        Half precision is for GPUs: processors without it are a hundred times slower, so there it is float32.
        """
        shared = {name: getattr(settings, name) for name in SHARED}
        training = dataclasses.replace(usual if self.training is None else self.training, **shared, **decided)
        if device.type == "cuda" or training.precision in ("fp32", "tf32"):
            return training
        to_stderr(f"precision {training.precision} is for CUDA; float32 on {device}")
        return dataclasses.replace(training, precision="fp32")

    def decay(self, optimizer: Optimizer) -> Optimizer:
        """With the weight decay of the configuration, where there is one."""
        if self.training is not None:
            for group in optimizer.param_groups:
                group["weight_decay"] = self.training.weight_decay
        return optimizer


def configured(arguments: Sequence[str] | None, templates: tuple[str, ...]) -> ScriptArguments:
    """Reads `--config` out of the arguments; a wrong one ends the program with exit code 2, as a wrong option does."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--config",
        metavar="FILE|TEMPLATE",
        help=f"hyper-parameters: {', '.join(templates)}, or a .toml or .json file that begins with template = one of "
        "them; options given beside it win",
    )
    found, rest = parser.parse_known_args(sys.argv[1:] if arguments is None else list(arguments))
    if {"-h", "--help"} & set(rest):
        parser.print_help()
    try:
        config = None if found.config is None else read(found.config, templates)
    except ConfigInvalid as error:
        parser.error(f"--config: {error}")
    unused = [
        field.name for field in dataclasses.fields(LoadingConfig) if config and getattr(config.loading, field.name)
    ]
    if unused:
        to_stderr(f"loading.{', loading.'.join(unused)}: not used, this pipeline keeps its data in memory")
    return ScriptArguments(config, rest)


def read(named: str, templates: tuple[str, ...]) -> Any:
    """A template by name, or a file; it must be one of `templates`."""
    if named in SCHEMAS:
        require_one_of(named, templates, named)
        return config_templates.template(named)
    path = Path(named)
    if not path.suffix and not path.exists():
        raise ConfigInvalid(f"{named} is neither a file nor a template; templates are {', '.join(templates)}")
    require_one_of(config_templates.template_of(path), templates, named)
    return config_templates.load(path)


def require_one_of(template: str, templates: tuple[str, ...], named: str) -> None:
    if template not in templates:
        raise ConfigInvalid(f"{named}: template {template} is for another pipeline; use {' or '.join(templates)}")
