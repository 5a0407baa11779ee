"""The entries that feed the model estimate their gain from an observation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from observations import loader, machine, observation

from hotlap.catalog import entries
from hotlap.records.observation import COPY, DATA, FORWARD, CopySite

SHARES = {DATA: 0.4, COPY: 0.1, FORWARD: 0.5}
SITE = CopySite(
    file="a.py", line=3, function="train", per_step=2, bytes_per_step=1e6, ms_per_step=1.0, pinned=False, blocking=True
)  # fmt: skip


def seen(gpu=None, copies=(), **of_loader):
    return replace(
        observation(), shares=SHARES, loaders=(loader(**of_loader),), machine=machine(gpu=gpu), copies=tuple(copies)
    )


@pytest.mark.parametrize(
    ("name", "given", "most"),
    [
        ("resident-data", seen(), 0.5),
        ("resident-data", seen(dataset_kind="iterable"), None),
        ("resident-data", seen(role="evaluation"), None),
        ("sample-cache", seen(), 0.4),
        ("sample-cache", seen(workers=2), None),
        ("device-prefetch", seen(gpu="H200", copies=[SITE]), 0.1),
        ("device-prefetch", seen(copies=[SITE]), None),
        ("pinned-copies", seen(gpu="H200", copies=[replace(SITE, pinned=True)]), None),
        ("pinned-copies", seen(), None),
    ],
)
def test_estimates_at_most_the_time_it_could_save(name, given, most):
    found = entries()[name].detect(given)
    assert (found.most if found else None) == (pytest.approx(most) if most else None)


def test_estimates_pinned_copies_from_pageable_copies():
    given = seen(gpu="H200", copies=[SITE])
    found = entries()["pinned-copies"].detect(given)
    assert found.most == pytest.approx(min(1.0, 1.0 / given.mean_step_ms))
