"""Accumulates three micro-batches per step."""

import torch
from common import Net, Points, say
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
step, total = 0, torch.zeros((), dtype=torch.float64)
for index, (inputs, targets) in enumerate(DataLoader(Points(24 * 3 * 2), batch_size=2), start=1):
    loss = torch.nn.functional.mse_loss(model(inputs), targets) / 3
    loss.backward()
    total += loss.detach().double()
    if index % 3 == 0:
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        say(step, total)
        total = torch.zeros((), dtype=torch.float64)
