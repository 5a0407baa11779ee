"""What a phase trains and what it freezes."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from hotlap.engine.errors import BadRecipe
from hotlap.engine.recipe import Phase


def all_names(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield every name of each parameter; a tied weight has several."""
    return model.named_parameters(remove_duplicate=False)


class FrozenModules:
    """Freezes by phase; what was frozen or in evaluation mode before the training stays so."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.trainable = {name for name, parameter in all_names(model) if parameter.requires_grad}
        norms = [
            (name, module)
            for name, module in model.named_modules()
            if isinstance(module, _NormBase) and module.training
        ]
        self.norms = {f"{name}.running_mean".lstrip("."): norm for name, norm in norms}

    def enter(self, phase: Phase) -> None:
        for prefix in phase.frozen:
            if not any(name.startswith(prefix) for name in self.trainable):
                raise BadRecipe(f"a phase freezes {prefix!r}, but no parameter's name starts with it")
        self._apply(phase.frozen, phase.frozen if phase.frozen_statistics else ())

    def leave(self) -> None:
        self._apply((), ())

    def _apply(self, frozen: tuple[str, ...], frozen_norms: tuple[str, ...]) -> None:
        held = {id(weight) for name, weight in all_names(self.model) if name.startswith(frozen)}
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(name in self.trainable and id(parameter) not in held)
        for name, norm in self.norms.items():
            norm.training = not name.startswith(frozen_norms)
