"""Mean average precision at IoU 0.5: decoding, suppression of duplicates and the precision-recall curve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from model import ANCHORS
from torch import Tensor

LOWEST_CONFIDENCE = 0.001
MOST_CANDIDATES = 100  # a picture
DOUBLE_IOU = 0.5  # two boxes of one class that overlap more are the same note
MATCH_IOU = 0.5


@dataclass(frozen=True)
class Detections:
    """What one picture holds: boxes `[n, 4]` as x1, y1, x2, y2 in 0..1, confidences and classes."""

    boxes: np.ndarray
    confidences: np.ndarray
    classes: np.ndarray


def decode(outputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes `[batch, n, 4]`, confidences and classes `[batch, n]` of every cell and anchor."""
    levels = [decode_level(output.float(), anchors) for output, anchors in zip(outputs, ANCHORS, strict=True)]
    boxes, scores = (torch.cat(column, dim=1) for column in zip(*levels, strict=True))
    confidences, classes = (scores[..., :1] * scores[..., 1:]).max(dim=2)
    return boxes, confidences, classes


def decode_level(output: Tensor, anchors: tuple[tuple[float, float], ...]) -> tuple[Tensor, Tensor]:
    batch, _, rows, columns, values = output.shape
    device = output.device
    y, x = torch.meshgrid(torch.arange(rows, device=device), torch.arange(columns, device=device), indexing="ij")
    grid = torch.tensor([columns, rows], device=device)
    centre = (output[..., 0:2].sigmoid() * 2 - 0.5 + torch.stack((x, y), dim=-1)) / grid
    size = (output[..., 2:4].sigmoid() * 2).square() * torch.tensor(anchors, device=device)[:, None, None]
    boxes = torch.cat((centre - size / 2, centre + size / 2), dim=-1)
    return boxes.reshape(batch, -1, 4), output[..., 4:].sigmoid().reshape(batch, -1, values - 4)


def strongest(boxes: Tensor, confidences: Tensor, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The most confident candidates of each picture, in falling order."""
    count = min(MOST_CANDIDATES, confidences.shape[1])
    top, index = confidences.topk(count, dim=1)
    return boxes.gather(1, index[..., None].expand(-1, -1, 4)), top, classes.gather(1, index)


def pair_iou(boxes: Tensor, others: Tensor) -> Tensor:
    """`[..., n, m]` overlap of every box with every other."""
    low = torch.maximum(boxes[..., :, None, :2], others[..., None, :, :2])
    high = torch.minimum(boxes[..., :, None, 2:], others[..., None, :, 2:])
    shared = (high - low).clamp(min=0).prod(dim=-1)
    area = (boxes[..., 2:] - boxes[..., :2]).prod(dim=-1)
    other_area = (others[..., 2:] - others[..., :2]).prod(dim=-1)
    return shared / (area[..., :, None] + other_area[..., None, :] - shared + 1e-9)


def doubles(boxes: Tensor, classes: Tensor) -> Tensor:
    """Return whether candidate j repeats the stronger candidate i, as `[..., n, n]`, above the diagonal only."""
    same = classes[..., :, None] == classes[..., None, :]
    return ((pair_iou(boxes, boxes) > DOUBLE_IOU) & same).triu(diagonal=1)


def suppress_doubles(boxes: Tensor, confidences: Tensor, classes: Tensor) -> Tensor:
    """Return which candidates stay, as `[batch, n]`. All pictures advance together, one candidate rank at a time."""
    repeats = doubles(boxes, classes)
    stays = confidences > LOWEST_CONFIDENCE
    for rank in range(boxes.shape[1] - 1):
        stays = stays & ~(repeats[:, rank] & stays[:, rank : rank + 1])
    return stays


def average_precision(recall: np.ndarray, precision: np.ndarray) -> float:
    """Area under the precision-recall curve, precision made non-increasing first."""
    recall = np.concatenate(([0.0], recall, [1.0]))
    precision = np.concatenate(([1.0], precision, [0.0]))
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(recall) * envelope[1:]))


def mean_average_precision(found: list[Detections], truth: list[np.ndarray], class_count: int) -> float:
    """Mean over the classes that occur; `truth` holds `[notes, 5]` of class, x1, y1, x2, y2 per picture."""
    scores = []
    for number in range(class_count):
        notes = sum(int((labels[:, 0] == number).sum()) for labels in truth)
        if notes:
            scores.append(class_average_precision(found, truth, number, notes))
    return float(np.mean(scores)) if scores else 0.0


def class_average_precision(found: list[Detections], truth: list[np.ndarray], number: int, notes: int) -> float:
    confidences, hits = [np.zeros(0)], [np.zeros(0, dtype=bool)]
    for picture, labels in zip(found, truth, strict=True):
        chosen = picture.classes == number
        confidences.append(picture.confidences[chosen])
        hits.append(match(picture.boxes[chosen], labels[labels[:, 0] == number, 1:]))
    order = np.argsort(-np.concatenate(confidences), kind="stable")
    hit = np.concatenate(hits)[order]
    true_positives = np.cumsum(hit)
    return average_precision(true_positives / notes, true_positives / np.arange(1, len(hit) + 1))


def match(boxes: np.ndarray, notes: np.ndarray) -> np.ndarray:
    """Return whether each box, strongest first, finds a note that no stronger box has found."""
    hit = np.zeros(len(boxes), dtype=bool)
    if not len(boxes) or not len(notes):
        return hit
    overlap = pair_iou(torch.from_numpy(boxes), torch.from_numpy(notes)).numpy()
    for index in range(len(boxes)):
        best = int(overlap[index].argmax())
        if overlap[index, best] >= MATCH_IOU:
            hit[index] = True
            overlap[:, best] = -1  # a note is found once
    return hit
