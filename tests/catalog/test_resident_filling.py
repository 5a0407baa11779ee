"""A dataset fetched by copies of the process, as many as its loader would have workers."""

from __future__ import annotations

import os
import signal
import sys
import time

import psutil
import pytest
import torch
from hotlap.catalog.resident_data.proof import _some
from torch.utils.data import DataLoader, Dataset

import hotlap
from hotlap.catalog.resident_data import streams
from hotlap.catalog.resident_data.sameness import same
from hotlap.catalog.resident_data.store import Store
from tests.catalog.resident import Visits, check, outcome, resident, seeded
from tests.catalog.test_resident_data import FORMS, Made
from tests.catalog.test_resident_ragged import Notes, numbered

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forks on Linux")
applying = sys.modules["hotlap.catalog.resident_data.apply"]
storing = sys.modules["hotlap.catalog.resident_data.store"]
HOME = os.getpid()


@pytest.fixture(autouse=True)
def filled(monkeypatch):
    """By forks whatever it takes; which of them have done so."""
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    monkeypatch.setattr("hotlap.catalog.resident_data.contents.LEAST_LOOKING", 60.0)  # the machine may be busy
    monkeypatch.setattr("hotlap.catalog.resident_data.proof.PATIENCE", 60.0)
    monkeypatch.setattr("hotlap.catalog.resident_data.proof._forks", True)
    monkeypatch.setattr(applying, "ALONE", -1.0)
    monkeypatch.setattr(storing, "TO_START", 30.0)
    done, fill = [], Store.fill_in_forks
    monkeypatch.setattr(Store, "fill_in_forks", lambda *args: done.append(fill(*args)) or done[-1])
    yield done
    hotlap.disable()


class Rows(Dataset):
    """One item, which the proof does not visit, may misbehave."""

    def __init__(self, total=23):
        self.values, self.total = torch.arange(100.0), total
        self.bad = min({*range(total)} - {*_some(total)})

    def __len__(self):
        return self.total

    def __getitem__(self, index):
        if index == self.bad:
            self.misbehave()
        return self.values[index]

    def misbehave(self):
        pass


class Printing(Rows):
    def misbehave(self):
        print("item", self.bad)


class Random(Rows):
    def misbehave(self):
        torch.rand(())


class Dying(Rows):
    def misbehave(self):
        if os.getpid() != HOME and not in_a_worker():
            os.kill(os.getpid(), signal.SIGKILL)


class Hanging(Rows):
    def misbehave(self):
        if os.getpid() != HOME and not in_a_worker():
            time.sleep(300)


class Failing(Rows):
    def misbehave(self):
        raise KeyError(self.bad)


def in_a_worker():
    return torch.utils.data._utils.worker._worker_info is not None


def children():
    return {one.pid for one in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_sample(form, filled):
    data = Made(FORMS[form])
    check(lambda: DataLoader(data, 4, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(5)), count=1)
    assert filled == [True]


def test_more_workers_than_items(filled):
    data = Made(FORMS["pair"], length=2)
    check(lambda: DataLoader(data, 4, shuffle=True, num_workers=5))
    assert filled == [True]


def test_small_parts_of_samples_are_handed_over(filled):
    data = Notes()
    check(lambda: DataLoader(data, 4, shuffle=True, collate_fn=numbered, num_workers=2))
    assert filled == [True]


@pytest.mark.parametrize(("kind", "said"), [(Printing, "prints or logs"), (Random, "drew from")])
def test_what_no_proof_has_seen_is_found_while_filling(kind, said, filled):
    plain = seeded(lambda: DataLoader(kind(), 4, num_workers=2))
    with resident() as enabled:
        assert same(torch, seeded(lambda: DataLoader(kind(), 4, num_workers=2)), plain)
        assert outcome(enabled).status == "refused"
        assert said in outcome(enabled).why
    assert filled == []


@pytest.mark.parametrize("kind", [Dying, Hanging])
def test_a_copy_that_dies_or_hangs_leaves_it_to_the_workers(kind, monkeypatch, filled):
    monkeypatch.setattr(storing, "TO_START", 1.0)
    monkeypatch.setattr(applying, "EAGER", -1.0)
    before = children()
    check(lambda: DataLoader(kind(), 4, num_workers=2), count=2)
    assert filled == [False]
    assert children() == before


def test_an_error_of_the_dataset_comes_from_its_worker_as_without_us(filled):
    with resident(), pytest.raises(KeyError, match="Caught KeyError in DataLoader worker process"):
        list(DataLoader(Failing(), 4, num_workers=2))


def test_workers_that_are_no_forks_are_left_to_fetch_it(filled, monkeypatch):
    monkeypatch.setattr(applying, "EAGER", -1.0)
    with resident() as enabled:
        (batch, *_) = DataLoader(Rows(), 4, num_workers=1, multiprocessing_context="spawn")
        assert batch.tolist() == [0, 1, 2, 3]
        assert "as its workers fetch them" in outcome(enabled).why
    assert filled == []


def test_a_slow_dataset_does_not_keep_a_program_waiting_that_wants_one_batch(filled):
    visits = Visits()

    class Slow(Rows):
        def __getitem__(self, index):
            visits.add(index)
            time.sleep(0.02)
            return self.values[index % 100]

    with resident() as enabled:
        next(iter(DataLoader(Slow(total=2000), 2, num_workers=2)))  # 40 s
        assert "as its workers fetch them" in outcome(enabled).why
    assert filled == []
    assert len(visits.all()) < 100


def test_random_streams_of_a_gpu_which_no_copy_can_read_are_left_alone(filled, monkeypatch):
    before = streams._global

    def with_a_gpu(torch):
        yield from before(torch)
        if os.getpid() == HOME:
            yield "cuda:0", read_at_home, read_at_home

    monkeypatch.setattr(streams, "_global", with_a_gpu)
    data = Rows()
    check(lambda: DataLoader(data, 4, num_workers=2))
    assert filled == [True]


def read_at_home(*state):
    assert os.getpid() == HOME
    return b""


def test_an_interrupt_while_filling_leaves_no_process_behind(monkeypatch, filled):
    def interrupted(*args):
        raise KeyboardInterrupt

    before = children()
    monkeypatch.setattr("hotlap.catalog.forked._answers", interrupted)
    monkeypatch.setattr("hotlap.catalog.resident_data.proof.in_a_fork", lambda *args: None)
    with resident(), pytest.raises(KeyboardInterrupt):
        list(DataLoader(Rows(), 4, num_workers=2))
    assert children() == before
