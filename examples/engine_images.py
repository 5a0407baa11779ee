"""Images from a DataLoader trained by hotlap.engine: random shifts, first the new head alone, then all of it.

python examples/engine_images.py [--epochs N]
"""

import argparse

import torch
from digits import Digits, Net
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

from hotlap.engine import Accuracy, FromTorch, Phase, Recipe, Trainer


class Shifted(Dataset):
    """Shifts each image by up to two pixels, anew each time, so that hotlap fetches it in every epoch."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, label = self.images[index]
        across, down = torch.randint(-2, 3, (2,)).tolist()
        return image.roll((across, down), (1, 2)), label


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--images", type=int, default=960)
    options = parser.parse_args()
    train = DataLoader(Shifted(Digits(options.images, seed=1)), batch_size=64, shuffle=True, drop_last=True)
    valid = DataLoader(Digits(192, seed=2), batch_size=64)  # always the same, so it is fetched once
    torch.manual_seed(0)
    model = Net()
    steps = options.epochs * len(train)
    all_of_it = FromTorch(lambda optimizer: OneCycleLR(optimizer, 1e-2, total_steps=steps, cycle_momentum=False))
    recipe = Recipe(
        batch_size=64,
        drop_last=True,
        ema=0.99,
        phases=(Phase(1, frozen=("features.",)), Phase(options.epochs, schedule=all_of_it)),
    )
    trainer = Trainer(
        model,
        nn.functional.cross_entropy,
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        recipe,
        metrics={"accuracy": Accuracy()},
        device="cpu",
    )
    history = trainer.fit(train, valid)
    with trainer.averaged():
        found = trainer.predict(valid).argmax(1)
    print(f"accuracy {history.last.scores['accuracy']:.3f}, most often {found.mode().values.item()}")


if __name__ == "__main__":
    main()
