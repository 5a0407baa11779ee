"""The detection loss: box (complete IoU), objectness and class, on fixed shapes.

No value leaves the device and no shape depends on a value, so the same code serves ragged targets in eager
mode and padded targets inside a CUDA graph. Targets are rows of (image, class, cx, cy, w, h), shares of the
picture; a row whose class is negative is padding and counts nothing.
"""

from __future__ import annotations

import math

import torch
from model import ANCHORS
from torch import Tensor
from torch.nn import functional

BOX_WEIGHT, OBJECT_WEIGHT, CLASS_WEIGHT = 0.1, 1.0, 1.0
LEVEL_BALANCE = (4.0, 1.0, 0.4)  # finer levels have more, emptier cells
LARGEST_RATIO = 3.0  # a note is predicted from the anchors that differ from it by less than this
PADDING_CLASS = -1


def loss_terms(outputs: tuple[Tensor, ...], targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The weighted box, objectness and class losses."""
    box = outputs[0].new_zeros((), dtype=torch.float32)
    objectness, classes = torch.zeros_like(box), torch.zeros_like(box)
    for output, anchors, balance in zip(outputs, ANCHORS, LEVEL_BALANCE, strict=True):
        level_box, level_object, level_class = level_terms(output.float(), targets, anchors)
        box = box + level_box
        objectness = objectness + balance * level_object
        classes = classes + level_class
    return BOX_WEIGHT * box, OBJECT_WEIGHT * objectness, CLASS_WEIGHT * classes


def level_terms(
    output: Tensor, targets: Tensor, anchors: tuple[tuple[float, float], ...]
) -> tuple[Tensor, Tensor, Tensor]:
    values = output.shape[-1]
    # Filled on the device: a number assigned by index, or a list, would be copied there, which a graph forbids.
    grid = grid_size(output)
    anchor_sizes = anchor_tensor(anchors, output) * grid
    index, cell, valid = candidates(targets, anchor_sizes, grid)
    weight = valid.float()
    count = weight.sum().clamp(min=1)
    picked = output.reshape(-1, values).index_select(0, index)
    shape = (*valid.shape, 2)
    centre = (picked[:, 0:2].sigmoid() * 2 - 0.5).view(shape)
    size = (picked[:, 2:4].sigmoid() * 2).square().view(shape) * anchor_sizes[None, :, None]
    true_centre = (targets[:, 2:4] * grid)[:, None, None] - cell[:, None]
    true_size = (targets[:, 4:6] * grid)[:, None, None].clamp(min=1e-3)
    iou = complete_iou(centre, size, true_centre, true_size)
    box = ((1 - iou) * weight).sum() / count
    one_hot = (targets[:, 1:2] == torch.arange(values - 5, device=targets.device)).to(output.dtype)
    class_target = one_hot[:, None, None].expand(*valid.shape, -1).reshape(-1, values - 5)
    class_loss = functional.binary_cross_entropy_with_logits(picked[:, 5:], class_target, reduction="none")
    classes = (class_loss.mean(dim=1) * weight.view(-1)).sum() / count
    present = output.new_zeros(output[..., 4].numel())
    quality = (iou.detach().clamp(min=0) * weight).view(-1)
    # The maximum if several notes claim one cell, so that the order of the writes does not matter.
    present = present.scatter_reduce(0, index, quality, "amax")
    objectness = functional.binary_cross_entropy_with_logits(output[..., 4].reshape(-1), present)
    return box, objectness, classes


def grid_size(output: Tensor) -> Tensor:
    grid = output.new_empty(2)
    grid[0].fill_(output.shape[3])
    grid[1].fill_(output.shape[2])
    return grid


def anchor_tensor(anchors: tuple[tuple[float, float], ...], like: Tensor) -> Tensor:
    sizes = like.new_empty(len(anchors), 2)
    for row, (width, height) in enumerate(anchors):
        sizes[row, 0].fill_(width)
        sizes[row, 1].fill_(height)
    return sizes


def candidates(targets: Tensor, anchor_sizes: Tensor, grid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every (target, anchor, neighbour cell): flat output index, cell `[targets, 5, 2]`, and whether it counts.

    A target is predicted by its own cell and by the two neighbours its centre is nearest to.
    """
    centre, size = targets[:, 2:4] * grid, (targets[:, 4:6] * grid).clamp(min=1e-3)
    ratio = size[:, None] / anchor_sizes[None]
    fits = torch.maximum(ratio, 1 / ratio).amax(dim=2) < LARGEST_RATIO
    part, from_end = centre % 1, (grid - centre) % 1
    toward_start = (part < 0.5) & (centre > 1)
    toward_end = (from_end < 0.5) & (grid - centre > 1)
    own = torch.ones_like(toward_start[:, :1])
    near = torch.cat((own, toward_start, toward_end), dim=1)  # own, left, above, right, below
    own_cell = torch.minimum(centre.floor(), grid - 1)
    cell = own_cell[:, None] + neighbour_steps(own_cell)
    cell = torch.minimum(cell.clamp(min=0), grid - 1)
    real = targets[:, 1] >= 0
    valid = fits[:, :, None] & near[:, None, :] & real[:, None, None]
    anchor = torch.arange(len(anchor_sizes), device=targets.device)
    image_anchor = targets[:, 0].long()[:, None] * len(anchor_sizes) + anchor
    row_column = cell.long()
    columns, rows = grid[0].long(), grid[1].long()
    index = (image_anchor[:, :, None] * rows + row_column[:, None, :, 1]) * columns + row_column[:, None, :, 0]
    return index.reshape(-1), cell, valid


def neighbour_steps(like: Tensor) -> Tensor:
    """Own cell, left, above, right, below, as (x, y) steps `[5, 2]`."""
    steps = like.new_zeros(5, 2)
    for row, column, step in ((1, 0, -1), (2, 1, -1), (3, 0, 1), (4, 1, 1)):
        steps[row, column].fill_(step)
    return steps


def complete_iou(centre: Tensor, size: Tensor, true_centre: Tensor, true_size: Tensor) -> Tensor:
    """Return the overlap, less the distance of the centres and the difference in shape, so that it has a gradient even
    far away."""
    low, high = centre - size / 2, centre + size / 2
    true_low, true_high = true_centre - true_size / 2, true_centre + true_size / 2
    shared = area((torch.minimum(high, true_high) - torch.maximum(low, true_low)).clamp(min=0))
    union = area(size) + area(true_size) - shared + 1e-7
    iou = shared / union
    hull = torch.maximum(high, true_high) - torch.minimum(low, true_low)
    distance = (centre - true_centre).square().sum(dim=-1) / (hull.square().sum(dim=-1) + 1e-7)
    angle = torch.atan(true_size[..., 0] / true_size[..., 1]) - torch.atan(size[..., 0] / (size[..., 1] + 1e-7))
    shape = 4 / math.pi**2 * angle.square()
    trade = (shape / (1 - iou + shape + 1e-7)).detach()
    return iou - distance - trade * shape


def area(size: Tensor) -> Tensor:
    """Multiply without prod, whose gradient asks the host whether there are zeros, which a graph forbids."""
    return size[..., 0] * size[..., 1]
