"""A tiny learnable task for all programs, and the line that each prints per step."""

import os

import torch
from torch import nn
from torch.utils.data import Dataset

STEPS = int(os.environ.get("STEPS", "24"))


class Points(Dataset):
    def __init__(self, length=STEPS * 4):
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(length, 8, generator=generator)
        self.targets = self.inputs.sum(1, keepdim=True)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, inputs):
        return self.layers(inputs)


def say(step, loss):
    """Print the loss without calling a method that hotlap counts as a host sync."""
    print(f"step {step} loss {memoryview(loss.detach().reshape(1).contiguous().numpy())[0]!r}", flush=True)
