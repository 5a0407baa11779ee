"""A write to the data during an epoch is seen before the batch it concerns, or the data is not kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import hotlap
from hotlap.loading import state


class Large(Dataset):
    """The dataset has eight megabytes; each item is a row and takes a while to fetch."""

    last = slice(60, 64)  # rows that come last in an epoch

    def __init__(self) -> None:
        self.rows = np.random.default_rng(0).normal(size=(64, 16384))

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: int) -> np.ndarray:
        return self.rows[index]

    def write(self, put_back: bool = False) -> None:
        for row in self.rows[self.last]:
            row *= 0.5 if put_back else 2.0

    def __getitem__(self, index: int) -> torch.Tensor:
        row = torch.from_numpy(self.row(index))
        for _ in range(8):
            row = torch.sin(row) + 0.1 * row
        return row.mean(0, keepdim=True)


class Reversed(Large):
    last = slice(0, 4)

    def row(self, index: int) -> np.ndarray:
        return self.rows[63 - index]


class Listed(Large):
    """The dataset keeps its rows as arrays in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = list(self.rows)


class Uneven(Listed):
    """The rows have different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = [row[: len(row) - number] for number, row in enumerate(self.rows)]


class Pictures(Listed):
    """Each picture is larger than what is compared at once."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = [np.tile(row, 8) for row in self.rows]


def trained(data: Large, *, within: bool) -> list[float]:
    """Writes to the last rows of an epoch: either during it, restored at its end, or between two epochs."""
    torch.manual_seed(0)
    model, losses = nn.Linear(1, 1).double(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        for step, batch in enumerate(DataLoader(data, 4)):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if within and (epoch, step) == (2, 3):
                data.write()
            if within and (epoch, step) == (2, 15):
                data.write(put_back=True)
        if not within and epoch == 2:
            data.write()
    return losses


def both_ways(kind: type[Large], *, within: bool) -> str:
    """Returns the reported reason for ending, after checking that the losses are the same."""
    plain = trained(kind(), within=within)
    with hotlap.enable(None, with_=["resident-data"]) as enabled:
        ours = trained(kind(), within=within)
    assert ours == plain
    return enabled.outcomes[0].why


@pytest.fixture(autouse=True)
def little_time(monkeypatch):
    """Nothing large is compared as a whole before a batch, on any machine."""
    for name, value in {"ALWAYS": 1e-4, "OFTEN": 0.0, "SHARE": 1e9}.items():
        monkeypatch.setattr(state, name, value)


@pytest.mark.parametrize("kind", [Large, Listed, Uneven, Pictures])
@pytest.mark.parametrize("within", [True, False])
def test_compares_the_rows_of_a_batch_before_handing_it_out(within, kind, capsys):
    assert "disabled later" in both_ways(kind, within=within)
    assert "may have been wrong" not in capsys.readouterr().err


def test_data_that_is_not_read_row_by_row_is_left_alone():
    assert "not read row by row" in both_ways(Reversed, within=True)
