"""Segment- and file-level evaluation as the leak report found it: one host sync per batch, one file at a time."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

LEAK = 3
THRESHOLD = 0.5


@dataclass(frozen=True)
class Scores:
    segment_f1: float
    accuracy: float
    file_f1: float = 0.0


def f1_score(true_positive: int, false_positive: int, false_negative: int) -> float:
    """Return F1, 0 if nothing was found and nothing was there to find: a detector that never fires earns nothing."""
    denominator = 2 * true_positive + false_positive + false_negative
    return 2 * true_positive / denominator if denominator else 0.0


def prepare_mel_batch(mel_batch: Tensor, device: torch.device) -> Tensor:
    mel_batch = mel_batch.unsqueeze(1).contiguous(memory_format=torch.channels_last)
    return mel_batch.to(device, non_blocking=True)


@torch.no_grad()
def evaluate_segments(model: nn.Module, loader: DataLoader[Any], device: torch.device, amp: bool) -> Scores:
    model.eval()
    correct, seen, true_positive, false_positive, false_negative = 0, 0, 0, 0, 0
    for mel_batch, labels in loader:
        mel_batch = prepare_mel_batch(mel_batch, device)
        labels = labels.to(device, non_blocking=True)
        with torch.amp.autocast(device.type, dtype=torch.float16, enabled=amp):
            class_logits, leak_logits = model(mel_batch)
        found, truth = torch.sigmoid(leak_logits) >= THRESHOLD, labels == LEAK
        correct += int((class_logits.argmax(dim=1) == labels).sum().item())
        true_positive += int((found & truth).sum().item())
        false_positive += int((found & ~truth).sum().item())
        false_negative += int((~found & truth).sum().item())
        seen += labels.size(0)
    return Scores(f1_score(true_positive, false_positive, false_negative), correct / seen)


@torch.no_grad()
def evaluate_file_level(model: nn.Module, dataset: Any, device: torch.device, amp: bool) -> float:
    """F1 over files: a file leaks when at least half of its long segments do."""
    model.eval()
    true_positive, false_positive, false_negative = 0, 0, 0
    for file_index in range(dataset.num_files):
        probs_long = []
        for long in range(dataset.num_long):
            mel = torch.from_numpy(dataset.mel()[file_index, long])
            with torch.amp.autocast(device.type, dtype=torch.float16, enabled=amp):
                _, leak_logits = model(prepare_mel_batch(mel, device))
            probs_long.append(torch.sigmoid(leak_logits.float()).mean().item())
        votes = sum(probability >= THRESHOLD for probability in probs_long)
        found = 2 * votes >= dataset.num_long
        truth = bool(dataset.file_label[file_index] == LEAK)
        true_positive += found and truth
        false_positive += found and not truth
        false_negative += truth and not found
    return f1_score(true_positive, false_positive, false_negative)


def evaluate_all(model: nn.Module, loader: DataLoader[Any], dataset: Any, device: torch.device, amp: bool) -> Scores:
    scores = evaluate_segments(model, loader, device, amp)
    return dataclasses.replace(scores, file_f1=evaluate_file_level(model, dataset, device, amp))
