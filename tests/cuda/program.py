"""Trains on CUDA for ever (or for --steps), with the one planted fault that --fault names."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none")
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--workers", type=int, default=0)
options = parser.parse_args()
fault = options.fault


class Resident:
    """Batches that already live on the device: no input, no copy."""

    def __init__(self, batch, features):
        self.inputs = torch.randn(batch, features, device="cuda")
        self.targets = torch.randn(batch, 1, device="cuda")

    def __iter__(self):
        while True:
            yield self.inputs, self.targets


class Elementwise(nn.Module):
    """A model that moves memory and multiplies no matrices."""

    def __init__(self, features):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(features))

    def forward(self, inputs):
        for _ in range(8):
            inputs = torch.tanh(inputs * self.scale)
        return inputs.mean(1, keepdim=True)


def build():
    if fault == "compute":
        return nn.Sequential(nn.Linear(4096, 8192), nn.ReLU(), nn.Linear(8192, 4096), nn.Linear(4096, 1)), 4096, 4096
    if fault == "memory":
        return Elementwise(4096), 16384, 4096
    if fault == "launch":
        return nn.Sequential(*[nn.Linear(32, 32) for _ in range(60)], nn.Linear(32, 1)), 64, 32
    if fault == "copy":
        return nn.Sequential(nn.Linear(65536, 16), nn.Linear(16, 1)), 2048, 65536
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 1)), 256, 64


def batches(batch, features):
    if fault in ("compute", "memory", "launch", "sync-error", "graph"):
        return Resident(batch, features)
    rows = batch * (4 if fault == "copy" else 50)
    data = TensorDataset(torch.randn(rows, features), torch.randn(rows, 1))
    if fault == "copy":
        return HostBatches(data, batch)
    return DataLoader(data, batch_size=batch, shuffle=True, num_workers=options.workers, pin_memory=fault == "pinned")


class HostBatches:
    """Pageable batches that cost nothing to make, so that only their copy takes time."""

    def __init__(self, data, batch):
        self.parts = list(zip(data.tensors[0].split(batch), data.tensors[1].split(batch), strict=True))

    def __iter__(self):
        return iter(self.parts)


torch.manual_seed(0)
model, batch, features = build()
model = model.cuda()
if fault in ("compiled", "reduce-overhead"):
    model = torch.compile(model, mode=None if fault == "compiled" else fault)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fault == "launch")
loader = batches(batch, features)
scaler = torch.amp.GradScaler("cuda", enabled=fault == "scaler", init_scale=2.0**30)
if fault == "sync-error":
    torch.cuda.set_sync_debug_mode("error")
step = 0
losses, values_read = [], []
while step < options.steps:
    for inputs, targets in loader:
        inputs = inputs.to("cuda", non_blocking=fault == "pinned")
        targets = targets.to("cuda", non_blocking=fault == "pinned")
        with torch.autocast("cuda", torch.float16, enabled=fault == "scaler"):
            loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        step += 1
        if fault == "item":
            values_read.append(loss.item())  # LINE item
        if fault == "mask":
            inputs[targets[:, 0] > 0]  # LINE mask
        if options.steps < 10**9:
            losses.append(loss.detach())
        if step >= options.steps:
            break
if options.steps < 10**9:
    for number, loss in enumerate(torch.stack(losses).double().cpu().numpy(), start=1):
        print(f"step {number} loss {float(loss)!r}")
