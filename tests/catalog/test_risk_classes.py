"""Each entry changes what its risk class allows, over trainings that draw random numbers everywhere: an exact one
nothing, one of rounding no more than last bits make, and neither any random number.
"""

from __future__ import annotations

import gc
from functools import cache

import pytest
import torch
from catalog.classes import assert_in_class, band_of
from catalog.drawing import TRAININGS

import hotlap
from hotlap import catalog
from hotlap.catalog.autocast.hardware import BF16, supports

ENTRIES = catalog.entries()
HERE = [name for name, entry in ENTRIES.items() if entry.device is None]
VALUES = {"activation-checkpointing": "always", "threads": "2", "loader-prefetch": "4"}
BESIDE_GRAPHS = ("loader-start-method",)
FOR_SLOW_DATA = ("sample-cache", "loader-workers")  # items that take longer than those of these trainings
HERE_ALL = [title for title, training in TRAININGS.items() if training.only != "cuda"]
DROPPED, IN_WORKERS = "a CNN with dropout and dropped planes", "augmentation in workers"
FEWER = {
    "threads": (DROPPED, IN_WORKERS),  # two threads on a core that is busy wait for each other
    "gc-pauses": (DROPPED, IN_WORKERS),  # nothing may be frozen then, and all objects of the tests are looked at
}


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """An error of an entry is raised, not contained."""
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


@pytest.fixture(autouse=True)
def quick_compiler(monkeypatch):
    """Dynamo reads the program as it does; what it finds is run as it is, without minutes of C++ compilation."""
    from torch._inductor import compile_fx

    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, inputs, **_: graph)
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def collector(request):
    """gc-pauses leaves one alone that someone else has frozen, as the tests have."""
    if "gc-pauses" in request.node.name:
        gc.unfreeze()
    yield
    gc.freeze()


@cache
def plain(name):
    return TRAININGS[name]()


@cache
def band(name):
    return band_of(plain(name), [TRAININGS[name](nudge=pattern) for pattern in (1, 2, 3)])


def asked(name):
    return f"{name}={VALUES[name]}" if name in VALUES else name


def can_apply(name):
    if name == "autocast":
        return supports(torch, torch.device("cpu"), BF16)
    return name not in (*BESIDE_GRAPHS, *FOR_SLOW_DATA)


@pytest.mark.parametrize("name", HERE)
def test_an_entry_changes_what_its_class_allows(name, capfd):
    became = {}
    for title in FEWER.get(name, HERE_ALL):
        plain(title), band(title)
        with hotlap.enable(None, with_=[asked(name)], quiet=True) as enabled:
            ours = TRAININGS[title]()
            (became[title],) = (outcome.status for outcome in enabled.outcomes)
        capfd.readouterr()
        assert_in_class(ENTRIES[name].risk, ours, plain(title), band(title), f"{name} on {title}")
    assert set(became.values()) & {"applied", "withdrawn"} or not can_apply(name), became


def test_a_mask_that_differs_is_outside_of_the_band():
    """The comparison can fail: another dropout, with the streams as they were."""
    title = "a CNN with dropout called as a function"
    with pytest.MonkeyPatch.context() as patched:
        own = torch.nn.functional.dropout
        last = torch.channels_last
        patched.setattr("torch.nn.functional.dropout", lambda x, *more: own(x.contiguous(memory_format=last), *more))
        other = TRAININGS[title]()
    assert other.streams == plain(title).streams
    with pytest.raises(AssertionError, match="losses"):
        assert_in_class(catalog.entries()["channels-last"].risk, other, plain(title), band(title), title)
