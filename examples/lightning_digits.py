"""The digits of digits.py trained by Lightning, as people write it; needs pip install lightning.

python examples/lightning_digits.py [--epochs N]
"""

import argparse

import lightning
import torch
from digits import Digits, Net
from torch import nn
from torch.utils.data import DataLoader


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Net()

    def training_step(self, batch, index):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        self.log("val_acc", (self.model(images).argmax(1) == labels).float().mean(), prog_bar=True)

    def on_validation_epoch_end(self):
        print(f"\nepoch {self.current_epoch}  val_acc: {self.trainer.callback_metrics['val_acc']:.4f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lightning.seed_everything(options.seed)
    train = DataLoader(Digits(6400, seed=1), batch_size=64, shuffle=True)
    valid = DataLoader(Digits(640, seed=2), batch_size=64)
    trainer = lightning.Trainer(max_epochs=options.epochs, num_sanity_val_steps=0, logger=False)
    trainer.fit(Classifier(), train, valid)


if __name__ == "__main__":
    main()
