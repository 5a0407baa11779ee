"""Each entry changes only what its risk class allows, in trainings that draw random numbers everywhere: exact changes
nothing, rounding no more than last bits would, and neither changes any random number.
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
from hotlap.catalog.entry import Stage

ENTRIES = catalog.entries()
HERE = [name for name, entry in ENTRIES.items() if entry.device is None]
VALUES = {"activation-checkpointing": "always", "threads": "2", "loader-prefetch": "4"}
BESIDE_GRAPHS = ("loader-start-method",)
FOR_SLOW_DATA = ("sample-cache", "loader-workers")  # these entries need items slower than those of these trainings
HERE_ALL = [title for title, training in TRAININGS.items() if training.only != "cuda"]
DROPPED, IN_WORKERS = "a CNN with dropout and dropped planes", "augmentation in workers"
OF_MODELS = (
    DROPPED, IN_WORKERS, "blocks dropped by random", "a CNN told to draw at a later step", "a CNN that draws nothing",
    "an LSTM with dropout between its layers",
)  # fmt: skip
MARKED = "pure samples that cost"
OF_DATA = (DROPPED, IN_WORKERS, MARKED, "augmentation in the dataset", "pure samples in a worker")
FEWER = {
    "threads": (DROPPED, IN_WORKERS),  # two threads on a core that is busy wait for each other
    "gc-pauses": (DROPPED, IN_WORKERS),  # nothing may be frozen then, so the collector walks all objects of the tests
}


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """Errors of entries are raised, not contained."""
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


@pytest.fixture(autouse=True)
def quick_compiler(monkeypatch):
    """Dynamo is real, but its graphs run as they are, without minutes of C++ compilation."""
    from torch._inductor import compile_fx

    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, inputs, **_: graph)
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def collector(request):
    """Unfreezes the collector: gc-pauses leaves a collector alone that the tests have frozen."""
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


def that_it_can_change(name):
    stage = ENTRIES[name].stage
    if stage in (Stage.DATASET, Stage.BATCH, Stage.LOADER):
        return OF_DATA
    return (DROPPED, IN_WORKERS, MARKED) if stage in (Stage.PROCESS, Stage.LOOP) else OF_MODELS


def choice_of(name):
    return f"{name}={VALUES[name]}" if name in VALUES else name


def can_apply(name):
    if name == "autocast":
        return supports(torch, torch.device("cpu"), BF16)
    return name not in (*BESIDE_GRAPHS, *FOR_SLOW_DATA)


@pytest.mark.parametrize("on_all", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["few", "all"])
@pytest.mark.parametrize("name", HERE)
def test_each_entry_changes_only_what_its_risk_class_allows(name, on_all, capfd):
    endings = {}
    for title in FEWER.get(name, HERE_ALL if on_all else that_it_can_change(name)):
        plain(title), band(title)
        with hotlap.enable(None, with_=[choice_of(name)], quiet=True) as enabled:
            ours = TRAININGS[title]()
            (endings[title],) = (outcome.status for outcome in enabled.outcomes)
        capfd.readouterr()
        assert_in_class(ENTRIES[name].risk, ours, plain(title), band(title), f"{name} on {title}")
    assert set(endings.values()) & {"applied", "withdrawn"} or not can_apply(name), endings


def test_a_different_dropout_mask_falls_outside_the_band():
    """The comparison can fail: this dropout mask differs while the streams stay the same."""
    title = "a CNN with dropout called as a function"
    with pytest.MonkeyPatch.context() as patched:
        own = torch.nn.functional.dropout
        last = torch.channels_last
        patched.setattr("torch.nn.functional.dropout", lambda x, *more: own(x.contiguous(memory_format=last), *more))
        other = TRAININGS[title]()
    assert other.streams == plain(title).streams
    with pytest.raises(AssertionError, match="losses"):
        assert_in_class(catalog.entries()["channels-last"].risk, other, plain(title), band(title), title)
