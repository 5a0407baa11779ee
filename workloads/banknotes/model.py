"""A detector of YOLOv5s size: cross-stage-partial backbone, pyramid head, predictions at strides 8, 16, 32."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

CLASS_COUNT = 7
VALUES = 5 + CLASS_COUNT  # x, y, w, h, objectness, classes
# Widths and heights of the boxes each level predicts from, as shares of the picture's side.
ANCHORS = (
    ((0.22, 0.14), (0.30, 0.22), (0.34, 0.32)),
    ((0.42, 0.26), (0.46, 0.38), (0.54, 0.32)),
    ((0.58, 0.44), (0.68, 0.38), (0.72, 0.56)),
)
PRIOR = 0.02  # share of cells that hold a note, before anything is learnt


class ConvBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        padding = (kernel - 1) // 2
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3)
        self.activation = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.norm(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.reduce = ConvBlock(channels, channels, 1)
        self.mix = ConvBlock(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mix(self.reduce(x))
        return x + mixed if self.shortcut else mixed


class CspBlock(nn.Module):
    """Half of the channels pass through the bottlenecks, half go around them."""

    def __init__(self, inputs: int, outputs: int, repeats: int, shortcut: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.deep_entry = ConvBlock(inputs, half)
        self.around = ConvBlock(inputs, half)
        self.deep = nn.Sequential(*(Bottleneck(half, shortcut) for _ in range(repeats)))
        self.join = ConvBlock(2 * half, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.join(torch.cat((self.deep(self.deep_entry(x)), self.around(x)), dim=1))


class PyramidPool(nn.Module):
    """Maximum over growing neighbourhoods, by pooling three times in a row."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.entry = ConvBlock(channels, channels // 2)
        self.pool = nn.MaxPool2d(kernel_size=5, stride=1, padding=2)
        self.join = ConvBlock(channels // 2 * 4, channels)

    def forward(self, x: Tensor) -> Tensor:
        once = self.pool(first := self.entry(x))
        twice = self.pool(once)
        return self.join(torch.cat((first, once, twice, self.pool(twice)), dim=1))


class Backbone(nn.Module):
    def __init__(self, channels: list[int], repeats: list[int]) -> None:
        super().__init__()
        c1, c2, c3, c4, c5 = channels
        self.stem = nn.Sequential(ConvBlock(3, c1, 6, 2), ConvBlock(c1, c2, 3, 2), CspBlock(c2, c2, repeats[0]))
        self.to_stride_8 = nn.Sequential(ConvBlock(c2, c3, 3, 2), CspBlock(c3, c3, repeats[1]))
        self.to_stride_16 = nn.Sequential(ConvBlock(c3, c4, 3, 2), CspBlock(c4, c4, repeats[2]))
        self.to_stride_32 = nn.Sequential(ConvBlock(c4, c5, 3, 2), CspBlock(c5, c5, repeats[3]), PyramidPool(c5))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stride_8 = self.to_stride_8(self.stem(images))
        stride_16 = self.to_stride_16(stride_8)
        return stride_8, stride_16, self.to_stride_32(stride_16)


class Head(nn.Module):
    """Features mixed from coarse to fine and back, then one detection head per stride."""

    def __init__(self, channels: list[int], repeats: int) -> None:
        super().__init__()
        _, _, c3, c4, c5 = channels
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.narrow_32, self.narrow_16 = ConvBlock(c5, c4), ConvBlock(c4, c3)
        self.down_mix_16 = CspBlock(2 * c4, c4, repeats, shortcut=False)
        self.down_mix_8 = CspBlock(2 * c3, c3, repeats, shortcut=False)
        self.shrink_8, self.shrink_16 = ConvBlock(c3, c3, 3, 2), ConvBlock(c4, c4, 3, 2)
        self.up_mix_16 = CspBlock(2 * c3, c4, repeats, shortcut=False)
        self.up_mix_32 = CspBlock(2 * c4, c5, repeats, shortcut=False)
        self.detect = nn.ModuleList(nn.Conv2d(c, 3 * VALUES, 1) for c in (c3, c4, c5))
        for layer in self.detect:
            set_prior(layer)

    def forward(self, features: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        stride_8, stride_16, stride_32 = features
        top = self.narrow_32(stride_32)
        middle = self.narrow_16(self.down_mix_16(torch.cat((self.upsample(top), stride_16), dim=1)))
        fine = self.down_mix_8(torch.cat((self.upsample(middle), stride_8), dim=1))
        medium = self.up_mix_16(torch.cat((self.shrink_8(fine), middle), dim=1))
        coarse = self.up_mix_32(torch.cat((self.shrink_16(medium), top), dim=1))
        return (
            predictions(self.detect[0], fine),
            predictions(self.detect[1], medium),
            predictions(self.detect[2], coarse),
        )


def predictions(layer: nn.Module, features: Tensor) -> Tensor:
    """`[batch, anchors, rows, columns, values]`, raw."""
    batch, _, rows, columns = features.shape
    return layer(features).view(batch, 3, VALUES, rows, columns).permute(0, 1, 3, 4, 2)


def set_prior(layer: nn.Module) -> None:
    """Start from the prior share of notes, so that the first steps are not spent on silencing empty cells."""
    with torch.no_grad():
        bias = layer.bias.view(3, VALUES)
        bias[:, 4] = math.log(PRIOR / (1 - PRIOR))
        bias[:, 5:] = math.log(1 / (CLASS_COUNT - 1))


class NoteDetector(nn.Module):
    """`[batch, 3, side, side]` pictures in 0..1 to three prediction maps."""

    def __init__(self, width: float, depth: float) -> None:
        super().__init__()
        channels = [int(width * c) for c in (64, 128, 256, 512, 1024)]
        repeats = [max(1, round(depth * n)) for n in (3, 6, 9, 3)]
        self.backbone = Backbone(channels, repeats)
        self.head = Head(channels, max(1, round(depth * 3)))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.head(self.backbone(images))
