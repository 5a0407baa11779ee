"""Small trainings that draw random numbers wherever a training may, and the results of each to compare.

Each runs on a given device, and draws in its forward, its data, its loop or its evaluation. None has a parameter
whose gradient is only rounding noise: Adam would turn it into steps of full length.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

EPOCHS, BATCHES, BATCH = 2, 10, 4
LATE = 13  # the step at which dropout starts
SEED = 5


@dataclass(frozen=True)
class TrainingResult:
    losses: list[float]
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    streams: list[Any]
    lines: list[str]  # what the program could have printed, except for rounded numbers


class PrintedLines(list[str]):
    """The program's own lines are collected and also printed, where an entry may replace `print`."""

    def __call__(self, line: Any) -> None:
        self.append(str(line))
        print(line, flush=True)


# Models


class Images(nn.Module):
    shape: tuple[int, ...] = (3, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()
        )
        self.head = nn.Linear(8, 1)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.between(self.body(x)).mean((2, 3)))


class DropoutModules(Images):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.planes = nn.Dropout(0.3), nn.Dropout2d(0.3)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.planes(self.drop(x))


class DroppedPlanes(Images):
    """The model drops whole planes and features, so the memory layout of the images plays no part."""

    def __init__(self) -> None:
        super().__init__()
        self.planes = nn.Dropout2d(0.3)
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(8, 1))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.planes(x)


class FunctionalDropout(Images):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.4, self.training) + 0.1 * torch.randn_like(x)


class OnlyInEvaluation(Images):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training else functional.dropout(x, 0.5, training=True)


class FromALaterStep(Images):
    """The model starts to drop when the loop sets `p`."""

    p = 0.0

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, self.p, self.training) if self.p else x


class CountingItsCalls(Images):
    calls = 0

    def between(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        return functional.dropout(x, 0.5, self.training) if self.calls > LATE else x


class Noisy(nn.Module):
    shape: tuple[int, ...] = (6,)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 12), nn.Linear(12, 12), nn.Linear(12, 1)
        self.between, self.alpha = nn.RReLU(), nn.AlphaDropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.between(self.first(x))
        x = x * functional.gumbel_softmax(self.second(x), tau=2.0)
        x = x * torch.bernoulli(torch.full_like(x, 0.8)) + 0.1 * torch.randn(x.shape, device=x.device)
        return self.head(self.alpha(x))


class Block(nn.Module):
    """Python or NumPy decides whether the whole block is dropped, and torch drops parts of it."""

    def __init__(self, width: int, draws: Callable[[], float]) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU(), nn.Dropout(0.2))
        self.draws = draws

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training and self.draws() < 0.3 else x + self.inner(x)


class StochasticDepth(nn.Module):
    shape: tuple[int, ...] = (6,)
    draws: Callable[[], float] = staticmethod(random.random)

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(Block(8, type(self).draws) for _ in range(3))
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class NumpyDepth(StochasticDepth):
    draws = staticmethod(np.random.random)


class NeverDropped(StochasticDepth):
    draws = staticmethod(lambda: 1.0)


class Recurrent(nn.Module):
    shape: tuple[int, ...] = (5, 3)
    dropout = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(3, 8, num_layers=2, batch_first=True, dropout=self.dropout)
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[0][:, -1])


class RecurrentDropout(Recurrent):
    dropout = 0.3


class Attention(nn.Module):
    shape: tuple[int, ...] = (5, 8)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x).unsqueeze(1)
        x = functional.scaled_dot_product_attention(x, x, x, dropout_p=0.2 if self.training else 0.0)
        return self.head(x.squeeze(1).mean(1))


class Plain(nn.Module):
    """The dataset draws nothing."""

    shape: tuple[int, ...] = (6,)

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


# Data


class Augmented(Dataset):  # type: ignore[type-arg]
    """The dataset draws for each sample from all three random streams of the fetching process."""

    def __init__(self, rows: torch.Tensor, targets: torch.Tensor) -> None:
        self.rows, self.targets = rows, targets

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = 0.1 * torch.randn(self.rows.shape[1:]) + random.random() * 0.1 + float(np.random.random()) * 0.1
        return self.rows[index] + noise, self.targets[index]


class Costly(Dataset):  # type: ignore[type-arg]
    """The dataset is pure, and slow enough to be worth keeping or fetching in a worker."""

    def __init__(self, rows: torch.Tensor, targets: torch.Tensor) -> None:
        self.rows, self.targets = rows, targets

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = self.rows[index].clone()
        for _ in range(60):
            row = row.roll(1, 0)
        return row, self.targets[index].clone()


# Trainings


@dataclass(frozen=True)
class Training:
    model: type[nn.Module]
    dataset: Any = TensorDataset
    workers: int = 0
    augments: bool = False  # in the loop
    marks: bool = False  # cleans up, draws a progress bar and marks its steps
    only: str | None = None  # the only device where it is worth running, or where it is reproducible

    def __call__(self, device: str = "cpu", nudge: int = 0) -> TrainingResult:
        """`nudge` is the pattern by which the initial weights are moved by one last bit; zero leaves them."""
        random.seed(SEED), np.random.seed(SEED), torch.manual_seed(SEED)
        model = self.model()
        _nudge(model, nudge)
        model.to(device)
        loader, optimizer, lines = self._loader(), torch.optim.AdamW(model.parameters(), lr=3e-3), PrintedLines()
        losses: list[float] = []
        for epoch in range(EPOCHS):
            losses += self._epoch(model, loader, optimizer, device)
            losses.append(_evaluated(model, device))
            lines(f"epoch {epoch} {optimizer} {optimizer.param_groups[0]['fused']}")
        state = optimizer.state_dict()
        lines([{name: value for name, value in group.items() if name != "params"} for group in state["param_groups"]])
        weights = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
        return TrainingResult(losses, weights, state["state"], _streams(device), list(lines))

    def _loader(self) -> DataLoader:  # type: ignore[type-arg]
        rows = torch.randn(BATCHES * BATCH, *self.model.shape)  # type: ignore[misc]
        targets = rows.flatten(1).mean(1, keepdim=True).tanh()
        return DataLoader(self.dataset(rows, targets), batch_size=BATCH, shuffle=True, num_workers=self.workers)

    def _epoch(self, model: Any, loader: Any, optimizer: Any, device: str) -> list[float]:
        losses = []
        for inputs, targets in self._marked(loader):
            inputs, targets = inputs.to(device), targets.to(device)
            if self.augments:
                inputs = inputs * (1 + 0.1 * random.random()) + 0.1 * torch.randn_like(inputs) * np.random.random()
            loss = functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            if isinstance(model, FromALaterStep) and optimizer.state[model.head.bias]["step"].item() == LATE:
                model.p = 0.5
        return losses

    def _marked(self, loader: Any) -> Any:
        if not self.marks:
            yield from loader
            return
        from tqdm import tqdm

        for batch in tqdm(loader):
            with torch.profiler.record_function("batch"):
                yield batch
            gc.collect()


def _nudge(model: nn.Module, pattern: int) -> None:
    """Moves each weight up or down by one last bit, without drawing random numbers."""
    if not pattern:
        return
    with torch.no_grad():
        for parameter in model.parameters():
            signs = torch.cos(torch.arange(parameter.numel()) * float(pattern)).sign().reshape(parameter.shape)
            parameter.copy_(torch.nextafter(parameter, parameter + signs))


def _evaluated(model: nn.Module, device: str) -> float:
    model.eval()
    with torch.no_grad():
        made = model(torch.ones(BATCH, *model.shape, device=device).cumsum(1) * 0.1)  # type: ignore[misc]
    model.train()
    return float(made.mean())


def _streams(device: str) -> list[Any]:
    """Returns the current state of every random stream."""
    drawn = [torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())]
    return drawn + ([torch.cuda.get_rng_state().tolist()] if device == "cuda" else [])


TRAININGS = {
    "a CNN with dropout and dropped planes": Training(DropoutModules),
    "a CNN with dropped planes and a dropped head": Training(DroppedPlanes),
    "a CNN with dropout called as a function": Training(FunctionalDropout),
    "a CNN that draws in evaluation only": Training(OnlyInEvaluation),
    "a CNN told to draw at a later step": Training(FromALaterStep),
    "a CNN that counts its calls and draws later": Training(CountingItsCalls),
    "a CNN that draws nothing": Training(Images),
    "an MLP with noise, RReLU and gumbel": Training(Noisy),
    "blocks dropped by random": Training(StochasticDepth),
    "blocks dropped by numpy": Training(NumpyDepth),
    "blocks with dropout": Training(NeverDropped),
    "an LSTM with dropout between its layers": Training(RecurrentDropout, only="cpu"),  # cuDNN has a stream of its own
    "an LSTM that draws nothing": Training(Recurrent, only="cuda"),
    "attention with dropout": Training(Attention),
    "augmentation in the loop": Training(Images, augments=True),
    "augmentation in the dataset": Training(Plain, dataset=Augmented),
    "augmentation in workers": Training(Plain, dataset=Augmented, workers=2),
    "pure samples in a worker": Training(Plain, dataset=Costly, workers=1),
    "pure samples that cost": Training(Plain, dataset=Costly, marks=True),
}
