"""Syncs and copies, by the line of the user's that makes them."""

from __future__ import annotations

import sys
import threading
from collections import Counter

import pytest
import torch

from hotlap.model.observation import DATA, PHASES
from hotlap.observe.clock import Clock
from hotlap.observe.syncs import Syncs, _direction
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.patch.tensors import open_tensors


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def syncs(clock):
    """As on CPU, where nothing waits but everything is told that would wait on CUDA."""
    seams, syncs = Seams(torch, Guard(strict=True)), Syncs(clock, on_cuda=False)
    seams.syncing.subscribe(syncs.before, syncs.after)
    ledger = open_tensors(seams, on_cuda=False)
    yield syncs
    ledger.close()


def kinds(syncs: Syncs) -> dict[str, int]:
    calls: Counter[str] = Counter()
    for row in syncs.rows(steps=1, steps_after=0):
        calls[row.kind] += row.calls
    return dict(calls)


def test_a_sync_is_told_with_the_users_line(syncs):
    value = torch.ones(())
    for _ in range(3):
        line = sys._getframe().f_lineno + 1
        value.item()
    (row,) = syncs.rows(steps=3, steps_after=0)
    assert (row.file, row.line, row.kind, row.calls, row.per_step) == (__file__, line, "item", 3, 1.0)
    assert row.function.endswith("test_a_sync_is_told_with_the_users_line")
    assert not row.waits
    assert row.via is None


def test_each_way_of_asking_for_a_value_is_named_as_the_user_wrote_it(syncs):
    value = torch.ones(1)
    assert bool(value)
    assert float(value) == int(value) == 1
    assert value.tolist() == value.numpy().tolist() == [1.0]
    assert [10, 20][torch.tensor(1)] == 20
    assert f"{value.sum():.1f}" == "1.0"
    str(value)
    if value > 0:
        pass
    assert kinds(syncs) == {
        "bool": 2,
        "float": 1,
        "int": 1,
        "tolist": 1,
        "numpy": 1,
        "index": 1,
        "format": 1,
        "print": 1,
    }


def test_printing_a_tensor_is_one_sync_whatever_it_calls_inside(syncs):
    repr(torch.arange(10.0))
    assert kinds(syncs) == {"print": 1}


def test_reading_what_was_just_brought_to_the_host_is_free(syncs):
    host = torch.ones(3).cpu()
    host.numpy()
    host.tolist()
    assert kinds(syncs) == {"cpu": 1}


def test_reading_while_loading_data_is_no_sync(syncs, clock):
    data = PHASES.index(DATA)
    clock.enter(data)
    torch.ones(()).item()
    clock.leave(data)
    assert kinds(syncs) == {}


def test_torchs_own_bookkeeping_on_the_host_is_no_sync(syncs):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    assert not [row for row in syncs.rows(steps=1, steps_after=0) if "torch/optim" in (row.via or row.file)]


def test_a_library_that_syncs_for_the_user_is_named_beside_the_users_line(syncs):
    torch.testing.assert_close(torch.ones(2), torch.ones(2))
    rows = syncs.rows(steps=1, steps_after=0)
    assert rows
    assert all(row.file == __file__ for row in rows)
    assert all(row.via is not None and row.via.startswith("torch/testing/") for row in rows)


def test_other_threads_are_not_counted(syncs):
    thread = threading.Thread(target=lambda: torch.ones(()).item())
    thread.start()
    thread.join()
    assert kinds(syncs) == {}


def test_a_sync_that_fails_is_closed_all_the_same(syncs, clock):
    with pytest.raises(RuntimeError):
        torch.ones(2).item()
    assert clock.current == "rest"
    torch.ones(()).item()
    assert kinds(syncs) == {"item": 2}


def test_clearing_forgets_the_warm_up(syncs):
    torch.ones(()).item()
    syncs.clear()
    assert syncs.rows(steps=1, steps_after=0) == ()


def test_what_is_counted_after_the_window_is_spread_over_steps_of_its_own(syncs):
    value = torch.ones(())
    value.item()
    syncs.freeze()
    for _ in range(6):
        value.tolist()
    rows = {row.kind: row.per_step for row in syncs.rows(steps=2, steps_after=3)}
    assert rows == {"item": 0.5, "tolist": 2.0}


class On:
    """A tensor as far as its device goes."""

    def __init__(self, cuda: bool) -> None:
        self.is_cuda = cuda


CPU, CUDA = On(False), On(True)


@pytest.mark.parametrize(
    ("name", "tensor", "args", "kwargs", "direction"),
    [
        ("to", CPU, ("cuda",), {}, "in"),
        ("to", CPU, ("cuda:1",), {}, "in"),
        ("to", CPU, (0,), {}, "in"),
        ("to", CPU, (torch.device("cuda"),), {}, "in"),
        ("to", CPU, (), {"device": "cuda"}, "in"),
        ("to", CPU, (), {"device": torch.device("cuda"), "non_blocking": True}, "in"),
        ("to", CPU, (CUDA,), {}, "in"),
        ("to", CPU, (), {"other": CUDA}, "in"),
        ("cuda", CPU, (), {}, "in"),
        ("copy_", CUDA, (CPU,), {}, "in"),
        ("to", CUDA, ("cpu",), {}, "out"),
        ("to", CUDA, (CPU,), {}, "out"),
        ("copy_", CPU, (CUDA,), {}, "out"),
        ("copy_", CPU, (), {"src": CUDA}, "out"),
        ("to", CUDA, ("cuda",), {}, ""),
        ("to", CPU, (torch.float16,), {}, ""),
        ("to", CUDA, (torch.float16,), {}, ""),
        ("to", CUDA, (), {"dtype": torch.float16}, ""),
        ("to", CPU, ("cpu",), {}, ""),
        ("to", CPU, (torch.device("meta"),), {}, ""),
        ("cuda", CUDA, (), {}, ""),
        ("copy_", CUDA, (CUDA,), {}, ""),
        ("copy_", CUDA, (1.0,), {}, ""),
    ],
)
def test_which_way_a_copy_goes(name, tensor, args, kwargs, direction):
    assert _direction(name, tensor, args, kwargs) == direction
