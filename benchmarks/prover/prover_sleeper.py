"""A training that other load on the machine hardly changes: each sample costs a sleep, so data kept in memory helps.

For prover_kill.py: which plan a tune of it ends with is decided by design, not by the luck of a busy machine.
"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SLEEP = 0.003  # seconds a sample


class Slow(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 8 * 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(SLEEP)
        inputs = torch.rand(4, generator=torch.Generator().manual_seed(index))
        return inputs, inputs.sum(0, keepdim=True)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Slow(), batch_size=8, shuffle=True)
    for _ in range(100):
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
