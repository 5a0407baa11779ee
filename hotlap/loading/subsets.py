"""Which rows of a dataset a subset of it is made from."""

from __future__ import annotations

from typing import Any


class Levels:
    """A dataset and, where it is a subset, what it is taken from, and so on."""

    def __init__(self, torch: Any, dataset: Any) -> None:
        self._taken: list[Any] = []
        self.totals: list[int] = []  # items of each level
        self.of_list: dict[int, int] = {}  # the levels whose items a list of a subset has elements for
        while type(dataset) is torch.utils.data.Subset:
            self.of_list[id(dataset.indices)] = len(self.totals)
            self.totals.append(len(dataset.indices))
            self._taken.append(torch.as_tensor(dataset.indices).cpu())
            dataset = dataset.dataset
        self.totals.append(len(dataset))
        self.last = len(self._taken)

    def rows(self, items: Any) -> list[Any]:
        """From items of the dataset to those of each level, as NumPy's indices."""
        found = [items]
        for taken in self._taken:
            found.append(taken[found[-1]])
        return [indices.numpy() for indices in found]
