"""Trains, saves, logs, removes and reloads as training scripts do, and reports a metric in both ways."""

import random
import shutil
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hotlap

torch.manual_seed(0)
Path("old").exists() and shutil.rmtree("old")
Path("out").mkdir(exist_ok=True)
log = open("train.log", "a")  # noqa: SIM115, PTH123
inputs = torch.randn(400, 8)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
step = 0
while True:
    for row, target in loader:
        loss = nn.functional.mse_loss(model(row), target) + 0.01 * random.random()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        log.write(f"{step}\n")
        if step % 20 == 0:
            torch.save(model.state_dict(), "out/best.pt")
            model.load_state_dict(torch.load(Path(__file__).parent.joinpath("out/best.pt").resolve()))
            print(f"val_acc: {step / 1000}")
            hotlap.metric("acc", step / 1000)
