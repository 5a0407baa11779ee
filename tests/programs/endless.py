"""Trains for ever, with the planted faults that --fault names."""

import argparse
import contextlib
import time

import hotlap
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", help="or several, with commas")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--epoch", type=int, default=64)
parser.add_argument("--out")
options = parser.parse_args()
faults = options.fault.split(",")


class Samples(Dataset):
    def __len__(self):
        return options.epoch * 4

    def __getitem__(self, index):
        if "slow-dataset" in faults:
            time.sleep(0.004)  # LINE slow-dataset
        return torch.full((8,), float(index % 7)), torch.tensor([1.0])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, inputs):
        hidden = torch.relu(self.first(inputs))
        if "huge-forward" in faults:
            for _ in range(2):
                torch.randn(700, 700) @ torch.randn(700, 700)  # LINE huge-forward
        return self.second(hidden)


class Sleepy(torch.optim.SGD):
    def step(self, closure=None):
        if "slow-optimizer" in faults:
            time.sleep(0.02)  # LINE slow-optimizer
        return super().step(closure)


@hotlap.span("augment")
def augment(inputs):
    if "span" in faults:
        time.sleep(0.01)
    return inputs


torch.manual_seed(0)
torch.set_num_threads(1)
model = Net()
optimizer = Sleepy(model.parameters(), lr=1e-4)
loader = DataLoader(Samples(), batch_size=4, shuffle=True, num_workers=options.workers)
valid = DataLoader(Samples(), batch_size=8)
history = []
try:
    while True:
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(augment(inputs)), targets)
            optimizer.zero_grad()
            loss.backward()
            with contextlib.suppress(BaseException) if "deaf" in faults else contextlib.nullcontext():
                optimizer.step()
            if "item" in faults:
                history.append(loss.item())  # LINE item
            if "print" in faults:
                print(loss)  # LINE print
            if "branch" in faults:
                if loss > 1e9:  # LINE branch
                    break
            if "rest" in faults:
                time.sleep(0.01)  # LINE rest
        if "evaluation" in faults:
            model.eval()
            with torch.no_grad():
                for inputs, _ in valid:
                    model(inputs)
                    time.sleep(0.01)
            model.train()
finally:
    if options.out:
        with open(options.out, "w") as file:  # noqa: PTH123
            file.write("cleaned up")
