"""Batches of a loader, plainly and with its dataset resident, compared bit by bit."""

from __future__ import annotations

import random
from importlib import import_module

import numpy as np
import torch

import hotlap
from hotlap.catalog.resident_data import store
from hotlap.catalog.resident_data.sameness import same
from hotlap.loading import pure, state


def be_patient(monkeypatch):
    """On a busy machine, too, all of what a dataset reads is looked at."""
    monkeypatch.setattr(state, "ALWAYS", 60.0)
    monkeypatch.setattr(state, "LEAST_SECONDS", 60.0)


def rows_asked_for(monkeypatch):
    """A list that grows by the rows which hotlap fetches here: a dataset that counts by itself is refused."""
    asked, fetch = [], pure.fetch

    def noted(dataset, indices):
        asked.extend(indices)
        return fetch(dataset, indices)

    for module in (pure, store, import_module("hotlap.catalog.sample_cache.apply")):
        monkeypatch.setattr(module, "fetch", noted)
    return asked


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
