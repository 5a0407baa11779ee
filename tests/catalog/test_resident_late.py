"""What is written into data while an epoch goes on is seen before the batch it concerns; of much data it is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import hotlap
from hotlap.loading import state

LATE = "may have been wrong"
LITTLE_TIME = {"ALWAYS": 1e-4, "OFTEN": 0.0, "SHARE": 1e9}  # on any machine: nothing large is compared as a whole


class Large(Dataset):
    """Eight megabytes, of which an item is a row, and takes its time."""

    last = slice(60, 64)  # rows that come last in an epoch

    def __init__(self) -> None:
        self.rows = np.random.default_rng(0).normal(size=(64, 16384))

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, index: int) -> np.ndarray:
        return self.rows[index]

    def write(self) -> None:
        for row in self.rows[self.last]:
            row[:] = 5.0

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
    """The rows are arrays in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = list(self.rows)


def trained(data: Large, *, within: bool, epochs: int = 4) -> list[float]:
    model, losses = nn.Linear(1, 1).double(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        for step, batch in enumerate(DataLoader(data, 4)):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if within and (epoch, step) == (2, 3):
                data.write()
        if not within and epoch == 2:
            data.write()
    return losses


@pytest.mark.parametrize("within", [True, False])
def test_a_late_discovery_is_said_and_a_change_between_epochs_is_none(within, capsys, monkeypatch):
    for name, value in {**LITTLE_TIME, "RARELY": 0.0, "MUCH": 0}.items():
        monkeypatch.setattr(state, name, value)
    torch.manual_seed(0)
    plain = trained(Reversed(), within=within)
    torch.manual_seed(0)
    with hotlap.enable(None, with_=["resident-data"]) as enabled:
        ours = trained(Reversed(), within=within)
    assert "given up later" in enabled.outcomes[0].why
    said = capsys.readouterr().err
    assert (LATE in said) is within
    assert within or ours == plain


@pytest.mark.parametrize("kind", [Large, Listed])
@pytest.mark.parametrize("steps", [0.0, 0.003])
def test_rows_of_the_batch_are_compared_before_it(steps, kind, capsys, monkeypatch):
    """A row for each item: what is written into rows that come later in the epoch is seen in time."""
    for name, value in {**LITTLE_TIME, "RARELY": steps}.items():
        monkeypatch.setattr(state, name, value)
    torch.manual_seed(0)
    plain = trained(kind(), within=True)
    torch.manual_seed(0)
    with hotlap.enable(None, with_=["resident-data"]) as enabled:
        ours = trained(kind(), within=True)
    assert "given up later" in enabled.outcomes[0].why
    assert ours == plain
    assert steps or LATE not in capsys.readouterr().err


def test_what_is_not_read_row_by_row_and_is_not_much_is_left_as_it_is(monkeypatch):
    for name, value in LITTLE_TIME.items():
        monkeypatch.setattr(state, name, value)
    torch.manual_seed(0)
    plain = trained(Reversed(), within=True)
    torch.manual_seed(0)
    with hotlap.enable(None, with_=["resident-data"]) as enabled:
        ours = trained(Reversed(), within=True)
    assert ours == plain
    assert enabled.outcomes[0].status == "refused"
    assert "not read row by row" in enabled.outcomes[0].why
