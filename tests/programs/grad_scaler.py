"""Trains with a GradScaler; the printed loss is the one before scaling."""

import torch
from common import Net, Points, say
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step, (inputs, targets) in enumerate(DataLoader(Points(), batch_size=4), start=1):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    say(step, loss)
