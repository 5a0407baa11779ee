"""Which rows of a dataset a subset of it is made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def innermost(torch: Any, dataset: Any) -> Any:
    """The dataset that subsets are taken from."""
    while type(dataset) is torch.utils.data.Subset:
        dataset = dataset.dataset
    return dataset


def rows_of(torch: Any, dataset: Any) -> Callable[[Any], Any]:
    """From items of a dataset to those of the innermost one, as NumPy's indices."""
    taken = None
    while type(dataset) is torch.utils.data.Subset:
        indices = torch.as_tensor(dataset.indices)
        taken = indices if taken is None else indices[taken]
        dataset = dataset.dataset
    return (lambda rows: rows.numpy()) if taken is None else (lambda rows: taken[rows].numpy())
