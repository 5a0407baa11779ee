"""A folder of images trained by hotlap.engine: random shifts, first the new head alone, then all of it.

python examples/engine_images.py FOLDER [--epochs N]
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from digits import Digits, Net
from PIL import Image
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

from hotlap.engine import Accuracy, FromTorch, Phase, Recipe, Trainer


def write_digits(folder, count, seed):
    """Write images as FOLDER/LABEL/NUMBER.png."""
    for number, (image, label) in enumerate(Digits(count, seed)[index] for index in range(count)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        pixels = (image[0] * 64 + 96).clamp(0, 255).to(torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / str(label) / f"{number:05}.png")


class ImageFolder(Dataset):
    """Images in folders named after their labels. Shifted ones differ each time, so they are read in every epoch."""

    def __init__(self, folder, shifts=0):
        self.files, self.shifts = sorted(folder.glob("*/*.png")), shifts

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file = self.files[index]
        image = torch.from_numpy(np.asarray(Image.open(file), dtype=np.float32) / 64 - 1.5)[None]
        if self.shifts:
            across, down = torch.randint(-self.shifts, self.shifts + 1, (2,)).tolist()
            image = image.roll((across, down), (1, 2))
        return image, int(file.parent.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the images are")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--images", type=int, default=960)
    options = parser.parse_args()
    if not options.folder.exists():
        write_digits(options.folder / "train", options.images, seed=1)
        write_digits(options.folder / "valid", 192, seed=2)
    train = DataLoader(ImageFolder(options.folder / "train", shifts=2), batch_size=32, shuffle=True, drop_last=True)
    valid = DataLoader(ImageFolder(options.folder / "valid"), batch_size=32)  # always the same, so it is read once
    torch.manual_seed(0)
    model = Net()
    steps = options.epochs * len(train)
    all_of_it = FromTorch(lambda optimizer: OneCycleLR(optimizer, 2e-2, total_steps=steps, cycle_momentum=False))
    recipe = Recipe(
        batch_size=32,
        drop_last=True,
        ema=0.9,
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
