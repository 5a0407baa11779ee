"""What a loss does with outputs and targets of different shapes, which torch repeats until they fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from hotlap.engine.errors import BadRecipe


class Comparing(TorchFunctionMode):
    """Raises where the loss combines outputs of shape [n, 1] with a target of shape [n], or the reverse, as they are:
    the result compares each row with all others. Whatever the loss has reshaped itself is its own business.
    """

    def __init__(self, outputs: Any, targets: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.outputs, self.targets = outputs, targets

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        given = [value for value in args[:2] if isinstance(value, Tensor)]
        if len(given) == 2 and isinstance(found, Tensor) and self._are_outputs_and_target(*given):
            shapes = {tuple(value.shape) for value in given}
            rows = len(given[0])
            if rows > 1 and shapes == {(rows,), (rows, 1)} and tuple(found.shape) == (rows, rows):
                raise different(f"{list(given[0].shape)} and {list(given[1].shape)}")
        return found

    def _are_outputs_and_target(self, first: Tensor, second: Tensor) -> bool:
        pairs = ((first, second), (second, first))
        return any(one is self.outputs and any(other is target for target in self.targets) for one, other in pairs)


def different(shapes: str) -> BadRecipe:
    return BadRecipe(
        f"the loss compares target and outputs of different shapes ({shapes}), each with all of the other; "
        "give them one shape, such as targets[:, None] in the data or .squeeze(1) at the end of the model"
    )
