"""Starts of loaders are timed on two seams and a simulated clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from hotlap.control.starts import Starts
from hotlap.patch.guard import Guard
from hotlap.patch.seam import Seam


class Ours(_SingleProcessDataLoaderIter):
    pass


class Program:
    def __init__(self) -> None:
        self.now = 0.0
        guard = Guard(None)
        self.seams: Any = SimpleNamespace(iterating=Seam("iterating", guard), fetching=Seam("fetching", guard))
        self.starts = Starts(torch, self.seams, lambda: self.now)
        self.starts.begin()

    def epoch(self, loader: Any, kind: Any, takes: float) -> None:
        iterator = self.seams.iterating.around(lambda: kind(loader), loader, (), {})
        for batch in range(3):
            self.seams.fetching.around(lambda: self._pass(0.0 if batch else takes), iterator, (), {})  # noqa: B023
            self.now += 5.0

    def _pass(self, seconds: float) -> None:
        self.now += seconds


def _loader() -> DataLoader[Any]:
    return DataLoader(torch.arange(3))  # type: ignore[arg-type]


def test_starts_are_compared_with_those_of_the_same_loader() -> None:
    program, loader, other = Program(), _loader(), _loader()
    program.epoch(loader, _SingleProcessDataLoaderIter, 1.25)
    program.epoch(other, Ours, 0.0)
    assert program.starts.saved == 0.0
    assert program.starts.sooner is None
    program.epoch(loader, Ours, 0.0)
    program.epoch(loader, Ours, 0.0)
    assert program.starts.saved == 2.5
    assert program.starts.sooner == 1.25


def test_short_starts_are_not_worth_a_word() -> None:
    program, loader = Program(), _loader()
    program.epoch(loader, _SingleProcessDataLoaderIter, 0.04)
    program.epoch(loader, Ours, 0.0)
    assert program.starts.saved == 0.04
    assert program.starts.sooner is None


def test_nothing_is_left_subscribed() -> None:
    program, loader = Program(), _loader()
    program.seams.iterating.around(lambda: _SingleProcessDataLoaderIter(loader), loader, (), {})
    assert program.seams.fetching.attended
    program.starts.end()
    assert not program.seams.fetching.attended
    assert not program.seams.iterating.attended
