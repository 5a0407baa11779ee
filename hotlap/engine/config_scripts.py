"""`--config FILE|TEMPLATE` for a training script: a typed configuration, overridden by the script's own options.

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
    """`config` is None if none was named; `rest` holds the arguments without it."""

    config: Any
    rest: list[str]

    @property
    def training(self) -> TrainingConfig | None:
        return None if self.config is None else self.config.training

    def arguments(self, **others: object) -> list[str]:
        """Return arguments for the script's own parser: the configuration's values, then the user's options.

        A value of None is left out.
        """
        if self.training is None:
            return self.rest
        values = {name: getattr(self.training, name) for name in SHARED} | others
        options = {name.replace("_", "-"): value for name, value in values.items() if value is not None}
        return [word for name, value in options.items() for word in (f"--{name}", str(value))] + self.rest

    def settled(self, settings: object, device: torch.device, usual: TrainingConfig, **decided: Any) -> TrainingConfig:
        """Return the configuration, or the `usual` training without one, with what the script's options decided.

        Half precision is for GPUs: CPUs without it are a hundred times slower, so they use float32.
        """
        shared = {name: getattr(settings, name) for name in SHARED}
        training = dataclasses.replace(usual if self.training is None else self.training, **shared, **decided)
        if device.type == "cuda" or training.precision in ("fp32", "tf32"):
            return training
        to_stderr(f"precision {training.precision} is for CUDA; using float32 on {device}")
        return dataclasses.replace(training, precision="fp32")

    def decay(self, optimizer: Optimizer) -> Optimizer:
        """Set the configuration's weight decay on the optimizer, if there is a configuration."""
        if self.training is not None:
            for group in optimizer.param_groups:
                group["weight_decay"] = self.training.weight_decay
        return optimizer


def configured(arguments: Sequence[str] | None, templates: tuple[str, ...]) -> ScriptArguments:
    """Read `--config` from the arguments; an invalid one ends the program with exit code 2, like an invalid option."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--config",
        metavar="FILE|TEMPLATE",
        help=f"hyper-parameters: {', '.join(templates)}, or a .toml or .json file that begins with template = one of "
        "them; other options override it",
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
        to_stderr(f"loading.{', loading.'.join(unused)}: not used, since this pipeline keeps its data in memory")
    return ScriptArguments(config, rest)


def read(named: str, templates: tuple[str, ...]) -> Any:
    """Read a template by name, or a file based on one; the template must be one of `templates`."""
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
