"""A small training that does a bit of everything, for changes that must be seen: see prover_planted.py.

Each batch waits for a moment, which is all that a planted change needs to leave out to be faster.
"""

import copy
import random
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 2
BATCHES = int(sys.argv[1]) if len(sys.argv) > 1 else 15  # an epoch; the last is not full, and has a step of its own
EPOCHS = int(sys.argv[2]) if len(sys.argv) > 2 else 1000 // BATCHES


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16, 4)
        self.unused = nn.Linear(5, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def validate(model, loader):
    model.eval()
    total = right = 0.0
    with torch.no_grad():
        for inputs, labels in loader:
            outputs = model(inputs)
            total += nn.functional.cross_entropy(outputs, labels).item()
            right += (outputs.argmax(1) == labels).float().mean().item()
    model.train()
    return total / len(loader), right / len(loader)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(16 * BATCHES - 6, 8)
    labels = inputs[:, :4].argmax(1)
    train = DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True)
    valid = DataLoader(TensorDataset(inputs[:64], labels[:64]), batch_size=16)
    model = Net()
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    model.unused.weight.grad, model.unused.bias.grad = torch.zeros(3, 5), torch.zeros(3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.97)
    for epoch in range(EPOCHS):
        began, seen = time.time(), 0.0
        for number, (batch, target) in enumerate(train, start=1):
            time.sleep(0.008)
            loss = nn.functional.cross_entropy(model(batch), target) / ACCUMULATE
            loss.backward()
            seen += loss.item()
            if number % ACCUMULATE == 0 or number == len(train):
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
                for old, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                    if old.is_floating_point():
                        old.lerp_(new, 0.1)
        schedule.step()
        noise = random.random() + np.random.rand()
        val_loss, val_acc = validate(model, valid)
        print(f"epoch {epoch} train loss {seen / len(train):.6f} took {time.time() - began:.3f} s, drew {noise:.6f}")
        print(f"val_loss {val_loss:.6f} val_acc {val_acc:.4f}", flush=True)
        print(f"end of epoch {epoch}", file=sys.stderr, flush=True)
        np.save("curve.npy", np.array([val_loss, val_acc]))
        with open("log.csv", "a") as log:
            log.write(f"{epoch},{val_loss:.6f}\n")
        torch.save(
            {
                "model": model.state_dict(),
                "average": average.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": epoch,
            },
            "checkpoint.pt",
        )


if __name__ == "__main__":
    main()
