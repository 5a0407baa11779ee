"""Arguments of the wrong kind, or in each other's place, are refused when a trainer is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from hotlap.engine.errors import BadRecipe
from hotlap.engine.recipe import Recipe


def require_kinds(model: Any, loss: Any, optimizer: Any, recipe: Any, step: Any, evaluate: Any) -> None:
    if not isinstance(model, nn.Module):
        raise BadRecipe(f"the model is {_shown(model)}; give an nn.Module first, and data to fit(train, valid)")
    for name, function in (("loss", loss), ("step", step), ("evaluate", evaluate)):
        if function is not None:
            _require_function(name, function)
    if isinstance(optimizer, type):
        name = optimizer.__name__
        raise BadRecipe(f"the optimizer is the class {name}; create it: {name}(model.parameters(), lr=…)")
    if not isinstance(recipe, Recipe):
        raise BadRecipe(f"the recipe is {_shown(recipe)}; give Recipe(batch_size=…)")


def _require_function(name: str, function: Any) -> None:
    if isinstance(function, type) and issubclass(function, nn.Module):
        raise BadRecipe(f"{name} is the class {function.__name__}; create it: {function.__name__}()")
    if not callable(function) or _is_data(function):
        takes = {"loss": "outputs and targets", "step": "model and batch", "evaluate": "the model"}[name]
        raise BadRecipe(f"{name} is {_shown(function)}; give a function of {takes}")


def _is_data(value: Any) -> bool:
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, nn.Module)


def require_names(name: str, metrics: Any) -> None:
    if not isinstance(metrics, Mapping):
        raise BadRecipe(f"{name} is {_shown(metrics)}; give a dict of metrics by name, such as {{'rmse': RMSE()}}")


def require_epochs(epochs: Any) -> None:
    if epochs is None or (isinstance(epochs, int) and not isinstance(epochs, bool) and epochs > 0):
        return
    if _is_data(epochs):
        raise BadRecipe(f"epochs is {_shown(epochs)}; fit takes training data, validation data and epochs=…")
    raise BadRecipe(f"epochs={epochs!r}; use a whole number of at least 1")


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, Callable) and hasattr(value, "__name__"):  # type: ignore[arg-type]
        return f"the function {value.__name__}"
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + ("" if shape is None else f" of shape {list(shape)}")
