"""While entries are switched on and off during a training on a GPU, losses match the program's up to rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import hotlap
from hotlap.control.enable import EnabledOptimizations
from hotlap.records.decisions import Decisions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

MOST = 40_000  # steps
LATER = 300  # steps after everything is decided


def poison() -> None:
    """Overwrite freed memory with NaN, so that anybody who still reads it is noticed."""
    held = [torch.full((size,), float("nan"), device="cuda") for size in (1, 16, 64, 128, 4096) for _ in range(64)]
    del held


def model_of(kind: str) -> nn.Module:
    if kind == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 10)
        )
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))


def train(kind: str, optimizer: type[torch.optim.Optimizer], goes_on: Callable[[int], bool]) -> list[float]:
    torch.manual_seed(0)
    x = torch.randn(4096, 1, 8, 8, device="cuda")
    y = (x.flatten(1) @ torch.randn(64, 10, device="cuda")).argmax(1)  # learnt, not memorised: rounding stays small
    model = model_of(kind).cuda()
    optim = optimizer(model.parameters(), lr=1e-3)
    losses: list[float] = []
    while goes_on(step := len(losses)):
        rows = torch.arange(64, device="cuda") + 64 * (step % 64)
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.item())
        if step % 40 == 39:
            poison()
            with torch.inference_mode():
                model.eval()
                model(x[:64]).sum().item()
                model.train()
    return losses


class UntilDecided:
    def __init__(self, enabled: EnabledOptimizations) -> None:
        self._enabled, self.since = enabled, 0

    @property
    def decisions(self) -> Decisions:
        assert self._enabled._running is not None
        assert self._enabled._running.deciding is not None
        return self._enabled._running.deciding.record()

    def __call__(self, step: int) -> bool:
        if not self.since and step % 50 == 0 and self.decisions.is_over:
            self.since = step
        return step < MOST and not (self.since and step >= self.since + LATER)


@pytest.mark.parametrize(("kind", "optimizer"), [("mlp", torch.optim.Adam), ("cnn", torch.optim.SGD)])
def test_losses_match_the_plain_program(kind: str, optimizer: type[torch.optim.Optimizer]) -> None:
    with hotlap.enable(risk="rounding") as enabled:
        until = UntilDecided(enabled)
        ours = train(kind, optimizer, until)
        decided = until.decisions
    plain = train(kind, optimizer, lambda step: step < len(ours))
    assert decided.is_over, decided
    assert any("cuda-graphs" in trial.names and trial.ratio is not None for trial in decided.tried), decided
    assert ours[:40] == pytest.approx(plain[:40], rel=1e-3)
    end, expected = (sum(losses[-64:]) / 64 for losses in (ours, plain))
    assert end == pytest.approx(expected, rel=0.2, abs=0.02)


class Pictures(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self) -> None:
        self.pixels, self.labels = torch.randint(0, 256, (8192, 64), dtype=torch.uint8), torch.randint(0, 10, (8192,))

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.pixels[index].float() / 255).sub(0.5).view(1, 8, 8), self.labels[index]


def test_kept_data_stays_while_everything_else_is_tried() -> None:
    """Entries wrap functions of tensors, which no dataset may take for a change of its own."""
    torch.manual_seed(0)
    model = model_of("mlp").cuda()
    optim = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Pictures(), batch_size=64, shuffle=True)
    with hotlap.enable(risk="rounding") as enabled:
        until, step = UntilDecided(enabled), 0
        while until(step):
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
                optim.zero_grad()
                loss.backward()
                optim.step()
                loss.item()
                step += 1
                if not until(step):
                    break
        tried = {name for trial in until.decisions.tried for name in trial.names}
        (outcome,) = [outcome for outcome in enabled.outcomes if outcome.name == "resident-data"]
    assert {"early-read", "profiler-marks"} <= tried, until.decisions
    assert outcome.status == "applied", outcome
    assert "disabled later" not in outcome.why, outcome


def test_a_second_training_in_the_process_matches_the_first() -> None:
    with hotlap.enable(risk="rounding"):
        first = train("mlp", torch.optim.Adam, lambda step: step < 400)
        second = train("mlp", torch.optim.Adam, lambda step: step < 400)
    assert second[:20] == pytest.approx(first[:20], rel=1e-3)
