"""Datasets that resident-data leaves alone, or only asks: nothing of the asking is left behind."""

from __future__ import annotations

import logging
import random
import signal
import sys
import threading
import types

import numpy as np
import pytest
import torch
from hotlap.catalog.resident_data.proof import prove, unchanged, visit
from hotlap.catalog.resident_data.streams import Streams
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from hotlap.catalog.resident_data.sameness import Unfit
from hotlap.catalog.silence import silenced
from hotlap.patch.signals import raised_by_signal
from tests.catalog.resident import outcome, resident


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine is no reason to give a copy of the process up."""
    monkeypatch.setattr("hotlap.catalog.resident_data.proof.PATIENCE", 60.0)
    monkeypatch.setattr("hotlap.catalog.resident_data.proof._forks", sys.platform == "linux")


augmod = types.ModuleType("augmod")
exec("import numpy\nrng = numpy.random.default_rng(0)\ndef jitter(x): return x + rng.normal()", vars(augmod))


class Rows(Dataset):
    def __init__(self):
        self.file, self.cache = None, set()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.file = self.file or object()
        self.cache.add(index)
        return float(index)


class Seeded(Rows):
    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        return index if info is None else info.seed


def asking(samples):
    return torch.tensor(samples) + (torch.utils.data.get_worker_info() is not None)


class Jittered(Rows):
    def __getitem__(self, index):
        return augmod.jitter(float(index))


class Counting:
    def __init__(self):
        self.batches = 0

    def __call__(self, samples):
        self.batches += 1
        return samples


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        (Rows(), {"worker_init_fn": print}, "worker_init_fn"),
        (Seeded(), {}, "get_worker_info"),
        (Subset(Seeded(), [1, 2]), {}, "get_worker_info"),
        (Rows(), {"collate_fn": asking}, "get_worker_info"),
    ],
)
def test_what_workers_set_up_for_themselves_needs_workers(dataset, options, said, workers):
    with resident() as enabled:
        list(DataLoader(dataset, num_workers=workers, **options))
        assert (said in outcome(enabled).why) == bool(workers)
        assert outcome(enabled).status == ("no effect" if workers else "applied")


def test_a_plain_loader_with_workers_is_suited_though_the_collate_of_torch_asks_for_them():
    with resident() as enabled:
        list(DataLoader(Rows(), num_workers=1))
        assert outcome(enabled).status == "applied"


@pytest.mark.parametrize("wrap", [lambda one: Subset(one, [0, 1, 2]), lambda one: ConcatDataset([one, one])])
def test_a_dataset_inside_another_is_put_back(wrap):
    inner = Rows()
    prove(torch, Subset(wrap(inner), [0, 1]))
    assert inner.file is None
    assert inner.cache == set()


class Counted(Rows):
    def __init__(self):
        super().__init__()
        self.seen, self.times = np.zeros(8), 0


class CountedByArray(Counted):
    def __getitem__(self, index):
        self.seen[index] += 1
        return float(index)


class CountedByNumber(Counted):
    def __getitem__(self, index):
        self.times += 1
        return float(index)


class Printing(Rows):
    def __getitem__(self, index):
        print("item", index)
        return float(index)


class Logging(Rows):
    def __getitem__(self, index):
        logging.getLogger("rows").warning("item %d", index)
        return float(index)


@pytest.mark.parametrize("forked", [True, False])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (CountedByArray, "changes what its dataset holds"),
        (CountedByNumber, "changes what its dataset holds"),
        (Printing, "prints or logs"),
        (Logging, "prints or logs"),
    ],
)
def test_what_fetching_leaves_behind_is_refused_and_not_left_behind(kind, said, forked, monkeypatch, capsys, caplog):
    if not forked:
        monkeypatch.setattr("hotlap.catalog.resident_data.proof._forks", False)
    dataset = kind()
    with pytest.raises(Unfit, match=said):
        prove(torch, dataset)
    assert capsys.readouterr().out == ""
    assert not caplog.records
    if forked or kind is not CountedByArray:
        assert (dataset.file, dataset.cache) == (None, set())
        assert not isinstance(dataset, Counted) or (dataset.times, dataset.seen.sum()) == (0, 0)


def test_an_item_that_is_printed_of_far_in_ends_it_without_a_word_of_ours(capsys):
    class Some(Rows):
        def __len__(self):
            return 200

        def __getitem__(self, index):
            if index == 77:
                print("odd", index)
            return float(index)

    data = Some()
    with resident() as enabled:
        for _ in range(2):
            list(DataLoader(data, 10))
        assert "prints or logs" in outcome(enabled).why
    assert capsys.readouterr().out == "odd 77\nodd 77\n"


def test_a_collate_object_is_put_back_also_behind_its_method():
    first, second = Counting(), Counting()
    with unchanged(torch, Rows(), first, second.__call__):
        first([1])
        second([1])
    assert (first.batches, second.batches) == (0, 0)


def test_the_generator_of_an_imported_module_is_seen_and_put_back():
    before = augmod.rng.bit_generator.state
    with pytest.raises(Unfit, match="numpy Generator"):
        prove(torch, Jittered())
    assert augmod.rng.bit_generator.state == before


def test_one_generator_for_each_of_many_items_is_seen():
    generators = [random.Random(seed) for seed in range(1000)]
    streams = Streams(torch, generators)
    assert streams.moved() is None
    generators[-1].random()
    assert streams.moved() == "its own random.Random"


class TimeUp(Exception):
    pass


class Slow(Rows):
    def __getitem__(self, index):
        signal.raise_signal(signal.SIGUSR1)


def test_an_error_of_the_programs_own_signal_handler_is_not_the_datasets():
    def stop(*_):
        raise TimeUp

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(TimeUp):
            visit(Slow(), [0])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not raised_by_signal(ValueError())


class Appending(Rows):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def __getitem__(self, index):
        with self.path.open("a") as file:
            file.write(f"{index}\n")
        return float(index)


class Holding(Rows):
    def __init__(self, path):
        super().__init__()
        self.log = path.open("w")


class Leaving(Rows):
    def __getitem__(self, index):
        sys.exit("no such item")


def test_a_dataset_that_writes_files_is_refused_and_nothing_is_written(tmp_path):
    path = tmp_path / "seen.txt"
    with pytest.raises(Unfit, match="writes a file"):
        prove(torch, Appending(path))
    assert not path.exists()
    holding = Holding(path)
    with holding.log, pytest.raises(Unfit, match="may be written"):
        prove(torch, holding)


def test_a_dataset_that_ends_the_program_does_so_at_its_time():
    with pytest.raises(Unfit, match="SystemExit"):
        prove(torch, Leaving())


def test_a_refusal_is_found_once(monkeypatch):
    data = Printing()
    with pytest.raises(Unfit, match="prints or logs"):
        prove(torch, data)
    monkeypatch.setattr("hotlap.catalog.resident_data.proof.in_a_fork", None)
    with pytest.raises(Unfit, match="prints or logs"):
        prove(torch, data)


def test_several_threads_may_be_silent_and_none_stays_so(capsys):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with silenced():
            inside.set()
            leave.wait(10)
            print("lost")
        print("other is back")

    thread = threading.Thread(target=other)
    with silenced() as mine:
        thread.start()
        inside.wait(10)
        print("lost too")
    print("this one is back")
    leave.set()
    thread.join()
    print("all are")
    assert mine.broken
    assert capsys.readouterr().out == "this one is back\nother is back\nall are\n"
