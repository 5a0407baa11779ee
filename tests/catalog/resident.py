"""Helpers that compare a loader's batches bit by bit, with and without its dataset resident."""

from __future__ import annotations

import random
from importlib import import_module

import numpy as np
import torch

import hotlap
from hotlap.catalog.resident_data import store
from hotlap.loading import pure
from hotlap.loading.samples import same


def rows_asked_for(monkeypatch):
    """Returns a growing list of the rows that hotlap fetches: a dataset that counts by itself would be refused."""
    rows, fetch = [], pure.fetch

    def noted(dataset, indices):
        rows.extend(indices)
        return fetch(dataset, indices)

    for module in (pure, store, import_module("hotlap.catalog.sample_cache.apply")):
        monkeypatch.setattr(module, "fetch", noted)
    return rows


def resident(*more):
    return hotlap.enable(None, with_=["resident-data", *more])


def outcome(enabled):
    (found,) = [found for found in enabled.outcomes if found.name == "resident-data"]
    return found


def epochs(loader, count=2, stop=None):
    """Returns all batches, with random numbers drawn in between as a model would."""
    seen = []
    for _ in range(count):
        for number, batch in enumerate(loader):
            seen.append(batch)
            seen.append([torch.rand(1), random.random(), float(np.random.rand())])
            if number == stop:
                break
    return seen


def seeded(make, **options):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return epochs(make(), **options)


def strides(batches):
    return [t.stride() for part in batches for t in tensors(part)]


def tensors(part):
    if isinstance(part, torch.Tensor):
        return [part]
    if isinstance(part, dict):
        part = list(part.values())
    return [t for element in part for t in tensors(element)] if isinstance(part, (list, tuple)) else []


def check(make, status="applied", **options):
    plain = seeded(make, **options)
    with resident() as enabled:
        ours = seeded(make, **options)
        assert outcome(enabled).status == status, outcome(enabled)
    assert same(torch, ours, plain)
    assert strides(ours) == strides(plain)
