"""The leak detector of the report: three convolutions, two poolings, one head per question."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

MEL_BANDS = 32
CLASS_COUNT = 4


class LeakCNN(nn.Module):
    """`[batch, 1, 32, 1]` mel segments to class logits `[batch, 4]` and a leak logit `[batch]`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.conv3 = nn.Conv2d(64, 128, kernel_size=3, padding=1)
        self.pool = nn.MaxPool2d(kernel_size=(2, 1))
        self.hidden = nn.Linear(128 * (MEL_BANDS // 4), 512)
        self.class_head = nn.Linear(512, CLASS_COUNT)
        self.leak_head = nn.Linear(512, 1)

    def forward(self, mel: Tensor) -> tuple[Tensor, Tensor]:
        features = self.pool(functional.relu(self.conv1(mel)))
        features = self.pool(functional.relu(self.conv2(features)))
        features = functional.relu(self.conv3(features))
        features = functional.relu(self.hidden(torch.flatten(features, 1)))
        return self.class_head(features), self.leak_head(features).squeeze(1)
