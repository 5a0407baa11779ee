"""What is written into large data while an epoch goes on cannot be seen before each batch: it is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import hotlap
from hotlap.loading import state

LATE = "may have been wrong"


class Large(Dataset):
    """Eight megabytes, `each` rows of them an item, which takes its time."""

    def __init__(self, each: int = 2) -> None:
        self.rows, self._each = np.random.default_rng(0).normal(size=(64 * each, 16384 // each)), each

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        row = torch.from_numpy(self.rows[index * self._each : (index + 1) * self._each].reshape(-1))
        for _ in range(8):
            row = torch.sin(row) + 0.1 * row
        return row.mean(0, keepdim=True)


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
                data.rows[:] = 5.0
        if not within and epoch == 2:
            data.rows[:] = 5.0
    return losses


@pytest.mark.parametrize("within", [True, False])
def test_a_late_discovery_is_said_and_a_change_between_epochs_is_none(within, capsys, monkeypatch):
    for name, value in {"ALWAYS": 0.0, "OFTEN": 0.0, "RARELY": 0.0, "SHARE": 1e9}.items():  # on any machine
        monkeypatch.setattr(state, name, value)
    torch.manual_seed(0)
    plain = trained(Large(), within=within)
    torch.manual_seed(0)
    with hotlap.enable(None, with_=["resident-data"]) as enabled:
        ours = trained(Large(), within=within)
    assert "given up later" in enabled.outcomes[0].why
    said = capsys.readouterr().err
    assert (LATE in said) is within
    assert within or ours == plain


@pytest.mark.parametrize("steps", [0.0, 0.003])
def test_rows_of_the_batch_are_compared_before_it(steps, capsys, monkeypatch):
    """An array with a row for each item: what is written into rows that come later in the epoch is seen in time."""
    for name, value in {"ALWAYS": 0.0, "OFTEN": 0.0, "RARELY": steps, "SHARE": 1e9}.items():
        monkeypatch.setattr(state, name, value)
    torch.manual_seed(0)
    plain = trained(Large(each=1), within=True)
    torch.manual_seed(0)
    with hotlap.enable(None, with_=["resident-data"]) as enabled:
        ours = trained(Large(each=1), within=True)
    assert "given up later" in enabled.outcomes[0].why
    assert ours == plain
    assert steps or LATE not in capsys.readouterr().err
