"""Maps the items of a subset to rows of its dataset."""

from __future__ import annotations

from typing import Any


class Levels:
    """A dataset and, if it is a subset, the datasets that it is taken from, level by level."""

    def __init__(self, torch: Any, dataset: Any) -> None:
        self._taken: list[Any] = []
        self.totals: list[int] = []  # number of items at each level
        self.of_list: dict[int, int] = {}  # by id of a subset's list of indices, the level that it belongs to
        while type(dataset) is torch.utils.data.Subset:
            self.of_list[id(dataset.indices)] = len(self.totals)
            self.totals.append(len(dataset.indices))
            taken = torch.as_tensor(dataset.indices).cpu()
            dataset = dataset.dataset
            self._taken.append(taken.remainder(max(1, len(dataset))))  # the last items may be numbered from the end
        self.totals.append(len(dataset))
        self.last = len(self._taken)

    def rows(self, items: Any) -> list[Any]:
        """Return the items at each level, as NumPy indices, for items of the dataset."""
        found = [items]
        for taken in self._taken:
            found.append(taken[found[-1]])
        return [indices.numpy() for indices in found]
