"""From whatever the user gives as data to a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotlap.engine.data.loaders import Loader, LoaderStream, is_loadable, loader_of, place
from hotlap.engine.data.placement import resident
from hotlap.engine.errors import BadRecipe
from hotlap.engine.recipe import Recipe
from hotlap.engine.seam import AnySource

AnyData = Any  # a source, arrays, a reader, a DataLoader, a dataset, or a Loader around one of the latter two


def source_of(
    data: AnyData, name: str, recipe: Recipe, passes: int, device: torch.device, say: Callable[[str], None]
) -> AnySource:
    """Return the data as a source for so many passes; one line says where its rows are, unless it is a source already.

    The training data of a loader must have the recipe's batches; validation data is evaluated in larger ones.
    """

    def tell(line: str) -> None:
        say(f"{name} data: {line}")

    if hasattr(data, "rows") and (hasattr(data, "gather") or hasattr(data, "batches")):
        source: AnySource = data
        return source
    if is_reader(data):
        return resident(data, device=device, say=tell)
    arrays = data if isinstance(data, list | tuple) else (data,)
    if arrays and all(isinstance(values, Tensor | np.ndarray) for values in arrays):
        return resident(*arrays, device=device, say=tell)
    _require_no_pipeline(data, name)
    if not is_loadable(data):
        raise BadRecipe(
            f"the {name} split is a {type(data).__name__}; give arrays, such as (inputs, targets), a DataLoader, a "
            "dataset, a reader or a source of hotlap.engine.data"
        )
    return _loaded(data, name, recipe, passes, device, tell)


def _require_no_pipeline(data: Any, name: str) -> None:
    """Refuse what the engine cannot read by itself, with the way that works."""
    package = next((found for found in ("ray", "nvidia.dali") if type(data).__module__.startswith(f"{found}.")), None)
    if package is not None:
        batches = "iter_torch_batches()" if package == "ray" else "the pipeline's iterator"
        raise BadRecipe(
            f"the {name} split is a {type(data).__name__} of {package}, which the engine does not read by itself; wrap "
            f"{batches} in an IterableDataset, and give it as Loader(DataLoader(dataset, batch_size=…), rows=…)"
        )


def is_reader(data: object) -> bool:
    return hasattr(data, "rows") and hasattr(data, "columns") and hasattr(data, "read")


def _loaded(
    data: Any, name: str, recipe: Recipe, passes: int, device: torch.device, tell: Callable[[str], None]
) -> AnySource:
    given = data if isinstance(data, Loader) else Loader(data)
    is_training = name == "training"
    loader = loader_of(given.data, recipe.batch_size, recipe.shuffle and is_training, recipe.drop_last and is_training)
    if is_training:
        _require_same_batches(loader, recipe)
    source, line = place(given, loader, passes, device)
    if isinstance(source, LoaderStream):
        source.start()
    tell(f"{source.rows} rows {line}")
    return source  # type: ignore[no-any-return]


def _require_same_batches(loader: Any, recipe: Recipe) -> None:
    for name in ("batch_size", "drop_last"):
        there, here = getattr(loader, name), getattr(recipe, name)
        if there is not None and there != here:
            raise BadRecipe(f"the DataLoader has {name}={there}, but the recipe {name}={here}; use the same in both")
