"""A training script as people write them: noisy digits drawn one by one, a CNN, a loss read at each step.

python examples/digits.py [--epochs N]
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

GLYPHS = {
    0: "111101101101111", 1: "010110010010111", 2: "111001111100111", 3: "111001111001111", 4: "101101111001001",
    5: "111100111001111", 6: "111100111101111", 7: "111001010010010", 8: "111101111101111", 9: "111101111001111",
}  # fmt: skip


class Digits(Dataset):
    """Each item is drawn on request, from a seed of its own, so that it is the same every time."""

    def __init__(self, length, seed):
        self.length, self.seed = length, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        label = index % 10
        generator = torch.Generator().manual_seed(self.seed * 1_000_000 + index)
        top, left = torch.randint(0, 12, (2,), generator=generator).tolist()
        image = torch.zeros(1, 140, 140)
        for position, pixel in enumerate(GLYPHS[label]):
            if pixel == "1":
                row, column = top + 3 * (position // 3), left + 4 * (position % 3)
                image[:, 5 * row : 5 * row + 15, 5 * column : 5 * column + 20] = 1.0
        smooth = nn.functional.avg_pool2d(nn.functional.avg_pool2d(image, 5, stride=1, padding=2), 5)
        return smooth + 0.4 * torch.randn(1, 28, 28, generator=generator), label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2),
        )  # fmt: skip
        self.classify = nn.Linear(8 * 7 * 7, 10)

    def forward(self, images):
        return self.classify(self.features(images).flatten(1))


def accuracy(model, loader):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(1) == labels).sum().item()
            total += len(labels)
    model.train()
    return right / total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # the net is small: a second thread would wait more than it helps
    train = DataLoader(Digits(960, seed=1), batch_size=64, shuffle=True)
    valid = DataLoader(Digits(192, seed=2), batch_size=64)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(1, options.epochs + 1):
        total = 0.0
        for images, labels in train:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}  loss {total / len(train):.4f}  val_acc: {accuracy(model, valid):.4f}", flush=True)


if __name__ == "__main__":
    main()
