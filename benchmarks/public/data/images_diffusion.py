"""Pictures for trainers of diffusion models, and the configuration of a small model next to them.

The variant "digits" has train/images/CLASS/*.png of 28 by 28 in grey, and small.yaml; "photographs" has
photographs/*.jpg, and unet/config.json.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from data.images import CLASSES, picture

DIGITS = """\
dataset_params:
  im_path: data/train/images
diffusion_params: {num_timesteps: 1000, beta_start: 0.0001, beta_end: 0.02}
model_params:
  im_channels: 1
  im_size: 28
  down_channels: [16, 32, 64]
  mid_channels: [64, 32]
  down_sample: [true, true]
  time_emb_dim: 32
  num_down_layers: 1
  num_mid_layers: 1
  num_up_layers: 1
  num_heads: 4
train_params:
  task_name: default
  batch_size: 4
  num_epochs: 40
  num_samples: 4
  num_grid_rows: 2
  lr: 0.0001
  ckpt_name: ddpm_ckpt.pth
"""
PHOTOGRAPHS = {
    "_class_name": "UNet2DModel",
    "sample_size": 32,
    "in_channels": 3,
    "out_channels": 3,
    "layers_per_block": 1,
    "block_out_channels": [32, 64],
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
}


def make(folder: Path, variant: str) -> None:
    rng = np.random.default_rng(0)
    if variant == "digits":
        for number in range(CLASSES):
            (folder / "train" / "images" / str(number)).mkdir(parents=True)
            for index in range(40):
                path = folder / "train" / "images" / str(number) / f"{index:04}.png"
                picture(number, (28, 28), rng).convert("L").save(path)
        (folder / "small.yaml").write_text(DIGITS)
    elif variant == "photographs":
        (folder / "photographs").mkdir()
        (folder / "unet").mkdir()
        for index in range(200):
            picture(index % CLASSES, (64, 64), rng).save(folder / "photographs" / f"{index:04}.jpg")
        (folder / "unet" / "config.json").write_text(json.dumps(PHOTOGRAPHS, indent=1))
    else:
        raise ValueError(f"there is no variant {variant}")
