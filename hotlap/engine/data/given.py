"""From whatever the user gives as data to a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hotlap.engine.data.dali import DaliStream, is_dali
from hotlap.engine.data.loaders import Loader, LoaderStream, is_loadable, loader_of, place
from hotlap.engine.data.placement import resident
from hotlap.engine.data.ray_data import RayStream, is_ray
from hotlap.engine.errors import BadRecipe
from hotlap.engine.recipe import Recipe
from hotlap.engine.seam import AnySource

AnyData = Any  # a source, arrays, a reader, a DataLoader, a dataset, or a Loader around one of the latter two


def source_of(
    data: AnyData,
    name: str,
    recipe: Recipe,
    passes: int,
    device: torch.device,
    say: Callable[[str], None],
    narrows: bool = False,
) -> AnySource:
    """Return the data as a source for so many passes; one line says where its rows are, unless it is a source already.

    The training data of a loader must have the recipe's batches; validation data is evaluated in larger ones. With
    `narrows`, what is not a source yet is cast from float64, numpy's type, to the float32 of the model.
    """

    def tell(line: str) -> None:
        say(f"{name} data: {line}")

    if hasattr(data, "rows") and (hasattr(data, "gather") or hasattr(data, "batches")):
        source: AnySource = data
        return source
    if is_reader(data):
        dtypes = [narrowed(column.dtype) if narrows else None for column in data.columns]
        return resident(data, device=device, say=tell, dtypes=dtypes)
    arrays = data if isinstance(data, list | tuple) else (data,)
    if arrays and all(isinstance(values, Tensor | np.ndarray) for values in arrays):
        dtypes = [narrowed(values.dtype) if narrows else None for values in arrays]
        return resident(*arrays, device=device, say=tell, dtypes=dtypes)
    if is_ray(data.data if isinstance(data, Loader) else data):
        return _from_ray(data, name, recipe, tell, narrows)
    if is_dali(data.data if isinstance(data, Loader) else data):
        return _from_dali(data, name, recipe, tell, narrows)
    if not is_loadable(data) or hint_for(data):
        raise BadRecipe(f"the {name} split is a {type(data).__name__}; {hint_for(data) or USUAL}")
    return _loaded(data, name, recipe, passes, device, tell, narrows)


USUAL = "give arrays, such as (inputs, targets), a DataLoader, a dataset, a reader or a source of hotlap.engine.data"


def narrowed(dtype: Any) -> torch.dtype | None:
    """Return float32 for float64, and None, as it is, for any other type."""
    return torch.float32 if dtype in (torch.float64, np.dtype(np.float64)) else None


def hint_for(data: Any) -> str | None:
    """Return what to give in place of data that people often hand in."""
    kinds = {type(part).__module__.partition(".")[0] for part in (data if isinstance(data, list | tuple) else (data,))}
    if isinstance(data, Mapping):
        return f"give one of its splits, such as data[{next(iter(data), 'train')!r}]"
    if isinstance(data, str | PathLike):
        return "give a reader of it: Folder(path, …), Csv, Parquet, Arrow, Hdf5 or NpyFolder of hotlap.engine.data"
    if kinds == {"pandas"} or kinds == {"polars"}:
        return 'give arrays of its columns: (frame[["a", "b"]].to_numpy(), frame[["y"]].to_numpy())'
    if kinds == {"h5py"}:
        return "give the reader Hdf5(file, …) with the names of its datasets"
    return None


def with_tensors(data: Any) -> Any:
    """Let a Hugging Face dataset without a format give tensors: torch would turn rows and entries of its lists over."""
    is_theirs = type(data).__module__.startswith("datasets.") and hasattr(data, "with_format")
    set_format = getattr(data, "format", {}).get("type") if is_theirs and hasattr(data, "format") else None
    return data.with_format("torch") if is_theirs and set_format is None else data


def is_reader(data: object) -> bool:
    return hasattr(data, "rows") and hasattr(data, "columns") and hasattr(data, "read")


def _loaded(
    data: Any,
    name: str,
    recipe: Recipe,
    passes: int,
    device: torch.device,
    tell: Callable[[str], None],
    narrows: bool,
) -> AnySource:
    given = data if isinstance(data, Loader) else Loader(data)
    given = replace(given, data=with_tensors(given.data))
    is_training = name == "training"
    loader = loader_of(given.data, recipe.batch_size, recipe.shuffle and is_training, recipe.drop_last and is_training)
    if is_training:
        _require_same_batches(loader, recipe)
    source, line = place(given, loader, passes, device, narrows)
    if isinstance(source, LoaderStream):
        source.start()
    tell(f"{source.rows} rows {line}")
    return source  # type: ignore[no-any-return]


def _from_ray(data: Any, name: str, recipe: Recipe, tell: Callable[[str], None], narrows: bool) -> AnySource:
    given = data if isinstance(data, Loader) else Loader(data)
    source = RayStream(given.data, given.rows, given.columns, recipe.shuffle and name == "training")
    source.narrows = narrows
    tell(f"{source.rows} rows {source.line}")
    return source


def _from_dali(data: Any, name: str, recipe: Recipe, tell: Callable[[str], None], narrows: bool) -> AnySource:
    given = data if isinstance(data, Loader) else Loader(data)
    source = DaliStream(given.data, given.rows, given.columns)
    if name == "training" and source.batch_size != recipe.batch_size:
        raise BadRecipe(
            f"the DALI pipeline has batch_size={source.batch_size}, but the recipe batch_size={recipe.batch_size}; "
            "use the same in both"
        )
    source.narrows = narrows
    tell(f"{source.rows} rows taken as DALI yields them, in an order of its own")
    return source


def _require_same_batches(loader: Any, recipe: Recipe) -> None:
    for name in ("batch_size", "drop_last"):
        there, here = getattr(loader, name), getattr(recipe, name)
        if there is not None and there != here:
            raise BadRecipe(f"the DataLoader has {name}={there}, but the recipe {name}={here}; use the same in both")
