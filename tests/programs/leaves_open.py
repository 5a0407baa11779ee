"""Closes nothing: Python flushes what is left and runs finalisers at the very end."""

import os
import sys

if sys.argv[1:] == ["enable"]:
    import hotlap

    hotlap.enable(risk="rounding", quiet=True)

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

losses = open("losses.txt", "w")  # noqa: SIM115, PTH123 never closed
SCALE = 1.5


class Gone:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        os.write(1, f"{self.name} is gone\n".encode())


class Rows(Dataset):
    def __init__(self):
        self.log, self.rows = open("rows.txt", "w"), torch.arange(64.0).reshape(32, 2)  # noqa: SIM115, PTH123
        self.gone = Gone("the dataset")

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return self.rows[index] * SCALE


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.gone = nn.Linear(2, 1), Gone("the model")

    def forward(self, inputs):
        return self.layer(inputs)


torch.manual_seed(0)
rows, net, kept = Rows(), Net(), Gone("a global")
optimizer = torch.optim.SGD(net.parameters(), 1e-5)
loader = DataLoader(rows, batch_size=4)
for epoch in range(40):
    for batch in loader:
        loss = net(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.write(f"{epoch} {loss.item():.4g}\n")
    rows.log.write(f"{epoch}\n")
