"""Batches of a loader, plainly and with its dataset resident, compared bit by bit."""

from __future__ import annotations

import random
from queue import SimpleQueue

import numpy as np
import torch

import hotlap
from hotlap.catalog.resident_data.sameness import same


class Visits:
    """Which items were asked for, kept where it cannot be seen: a dataset that counts openly is refused."""

    def __init__(self):
        self._unseen = SimpleQueue()

    def add(self, index):
        self._unseen.put(index)

    def all(self):
        found = [self._unseen.get() for _ in range(self._unseen.qsize())]
        for one in found:
            self._unseen.put(one)
        return found


def resident(*more):
    return hotlap.enable(None, with_=["resident-data", *more])


def outcome(enabled):
    (one,) = [one for one in enabled.outcomes if one.name == "resident-data"]
    return one


def epochs(loader, count=2, stop=None):
    """All batches, with random numbers drawn in between as a model would, and the streams at the end."""
    seen = []
    for _ in range(count):
        for number, batch in enumerate(loader):
            seen.append(batch)
            seen.append([torch.rand(1), random.random(), float(np.random.rand())])
            if number == stop:
                break
    return seen


def seeded(make, **how):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return epochs(make(), **how)


def strides(batches):
    return [t.stride() for part in batches for t in tensors(part)]


def tensors(part):
    if isinstance(part, torch.Tensor):
        return [part]
    if isinstance(part, dict):
        part = list(part.values())
    return [t for one in part for t in tensors(one)] if isinstance(part, (list, tuple)) else []


def check(make, status="applied", **how):
    plain = seeded(make, **how)
    with resident() as enabled:
        ours = seeded(make, **how)
        assert outcome(enabled).status == status, outcome(enabled)
    assert same(torch, ours, plain)
    assert strides(ours) == strides(plain)
