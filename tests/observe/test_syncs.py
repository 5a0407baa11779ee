"""Syncs and copies are reported by the user's line that makes them."""

from __future__ import annotations

import sys
import threading
from collections import Counter

import pytest
import torch

from hotlap.observe.loaders import Loaders
from hotlap.observe.losses import Losses
from hotlap.observe.story import Story
from hotlap.observe.syncs import MASK, Copies, Syncs
from hotlap.observe.tally import Tally
from hotlap.observe.tape import SYNC_BEGINS, SYNC_ENDS
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Entry, Seams
from hotlap.patch.tensors import direction_of, open_tensors
from hotlap.records.observation import Sync


class Watched:
    """Syncs observed as on CPU, where nothing waits but everything that would wait on CUDA is reported."""

    def __init__(self) -> None:
        self.syncs, self.tape = Syncs(on_cuda=False), list[Entry]()
        self.story = Story(0, threading.get_ident(), Loaders(), Losses(torch), Tally())
        self.story.syncs = self.syncs
        self.syncs.watching = True
        self.seams = Seams(torch, Guard(strict=True))
        self.seams.syncing.write_to(self.tape.append, SYNC_BEGINS, SYNC_ENDS, result=self.syncs.note)

    def rows(self, steps: int = 1) -> tuple[Sync, ...]:
        self.story.read(self.tape)
        for _ in range(steps):
            self.syncs.optimizer_stepped()
        return self.syncs.rows(steps=0, optimizer_steps_a_step=1.0)


@pytest.fixture
def watched():
    watched = Watched()
    ledger = open_tensors(watched.seams, on_cuda=False)
    yield watched
    ledger.close()


def kinds(watched: Watched) -> dict[str, int]:
    calls: Counter[str] = Counter()
    for row in watched.rows():
        calls[row.kind] += row.calls
    return dict(calls)


def test_a_sync_is_reported_with_the_users_line(watched):
    value = torch.ones(())
    for _ in range(3):
        line = sys._getframe().f_lineno + 1
        value.item()
    (row,) = watched.rows(steps=3)
    assert (row.file, row.line, row.kind, row.calls, row.per_step) == (__file__, line, "item", 3, 1.0)
    assert row.function.endswith("test_a_sync_is_reported_with_the_users_line")
    assert not row.waits
    assert row.via is None


def test_each_way_of_reading_a_value_is_named_as_the_user_wrote_it(watched):
    value = torch.ones(1)
    assert bool(value)
    assert float(value) == int(value) == 1
    assert value.tolist() == value.numpy().tolist() == [1.0]
    assert [10, 20][torch.tensor(1)] == 20
    assert f"{value.sum():.1f}" == "1.0"
    str(value)
    if value > 0:
        pass
    assert kinds(watched) == {
        "bool": 2,
        "float": 1,
        "int": 1,
        "tolist": 1,
        "numpy": 1,
        "index": 1,
        "format": 1,
        "print": 1,
    }


def test_printing_a_tensor_is_one_sync_whatever_it_calls_internally(watched):
    repr(torch.arange(10.0))
    assert kinds(watched) == {"print": 1}


def test_reading_a_tensor_already_on_the_host_is_free(watched):
    host = torch.ones(3).cpu()
    host.numpy()
    host.tolist()
    assert kinds(watched) == {"cpu": 1}


def test_torchs_own_bookkeeping_on_the_host_is_not_a_sync(watched):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    assert not [row for row in watched.rows() if "torch/optim" in (row.via or row.file)]


def test_a_library_that_syncs_for_the_user_is_named_beside_the_users_line(watched):
    torch.testing.assert_close(torch.ones(2), torch.ones(2))
    rows = watched.rows()
    assert rows
    assert all(row.file == __file__ for row in rows)
    assert all(row.via is not None and row.via.startswith("torch/testing/") for row in rows)


def test_other_threads_are_not_counted(watched):
    thread = threading.Thread(target=lambda: torch.ones(()).item())
    thread.start()
    thread.join()
    assert kinds(watched) == {}


def test_a_sync_that_raises_is_still_closed(watched):
    with pytest.raises(RuntimeError):
        torch.ones(2).item()
    torch.ones(()).item()
    assert kinds(watched) == {"item": 2}
    assert watched.story.clock.current == "rest"


def noted(syncs: Syncs, kind: str, cuda: bool = True):
    return syncs.note(kind, sys._getframe(), On(cuda), (), {}, None)


def test_on_cuda_only_masks_are_counted_outside_the_timed_window():
    syncs = Syncs(on_cuda=True)
    syncs.watching = True
    syncs.count(noted(syncs, "item"), 5)
    syncs.count(noted(syncs, MASK), 5)
    syncs.optimizer_stepped()
    assert [row.kind for row in syncs.rows(steps=1, optimizer_steps_a_step=1.0)] == [MASK]


def test_syncs_counted_outside_the_window_are_divided_by_its_own_steps():
    syncs = Syncs(on_cuda=True)
    syncs.timing = True
    syncs.count(noted(syncs, "item"), 4_000_000)
    syncs.optimizer_stepped()
    syncs.timing, syncs.watching = False, True
    for _ in range(6):
        syncs.count(noted(syncs, MASK), 0)
        syncs.optimizer_stepped()
    rows = syncs.rows(steps=2, optimizer_steps_a_step=2.0)
    assert {row.kind: (row.per_step, row.ms_per_step) for row in rows} == {"item": (0.5, 2.0), MASK: (2.0, 0.0)}
    assert all(row.waits for row in rows)


def test_a_read_once_a_step_is_counted_once_a_step_where_the_last_step_is_cut_off():
    syncs = Syncs(on_cuda=False)
    syncs.watch(True)
    for _ in range(3):
        syncs.count(noted(syncs, "item", cuda=False), 0)
        syncs.optimizer_stepped()
    syncs.count(noted(syncs, "item", cuda=False), 0)
    (row,) = syncs.rows(steps=0, optimizer_steps_a_step=1.0)
    assert (row.calls, row.per_step) == (3, 1.0)


def test_on_cpu_nothing_is_counted_in_the_timed_window():
    """A sync already on the tape when the window begins is not counted either: it would appear as a rare sync."""
    syncs = Syncs(on_cuda=False)
    syncs.timing = syncs.watching = True
    syncs.count(noted(syncs, "item", cuda=False), 5)
    assert syncs.rows(steps=10, optimizer_steps_a_step=1.0) == ()


def test_nothing_is_counted_when_nobody_watches():
    syncs = Syncs(on_cuda=False)
    syncs.count(noted(syncs, "item", cuda=False), 5)
    syncs.optimizer_stepped()
    assert syncs.rows(steps=1, optimizer_steps_a_step=1.0) == ()


def test_on_cuda_a_tensor_on_the_host_does_not_wait():
    syncs = Syncs(on_cuda=True)
    assert noted(syncs, "item", cuda=False) is None
    assert noted(syncs, "synchronize", cuda=False) is not None


def test_a_copy_is_reported_with_its_line_its_bytes_and_its_kind():
    copies, source = Copies(), torch.zeros(4)

    def copy(**how) -> None:
        copies.count(*copies.note("to", sys._getframe(), source, (source, "cuda"), how, None), 3_000_000)

    copy()
    assert copies.rows(steps=1) == (), "only the timed window counts"
    copies.timing = True
    copy()
    copy()
    copy(non_blocking=True)
    blocking, other = copies.rows(steps=2)
    assert (blocking.file, blocking.per_step, blocking.bytes_per_step) == (__file__, 1.0, 16.0)
    assert (blocking.ms_per_step, blocking.blocking, blocking.pinned) == (3.0, True, False)
    assert (other.per_step, other.blocking) == (0.5, False)


class On:
    """Stands for a tensor on this device."""

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
        ("to", CUDA, ("cuda",), {}, None),
        ("to", CPU, (torch.float16,), {}, None),
        ("to", CUDA, (torch.float16,), {}, None),
        ("to", CUDA, (), {"dtype": torch.float16}, None),
        ("to", CPU, ("cpu",), {}, None),
        ("to", CPU, (torch.device("meta"),), {}, None),
        ("cuda", CUDA, (), {}, None),
        ("copy_", CUDA, (CUDA,), {}, None),
        ("copy_", CUDA, (1.0,), {}, None),
    ],
)
def test_the_direction_of_a_copy_is_found(name, tensor, args, kwargs, direction):
    assert direction_of(name, tensor, args, kwargs) == direction
