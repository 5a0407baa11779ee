"""resident-data leaves unsuited datasets alone, and its check leaves no trace."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

from hotlap.loading import pure as loading
from hotlap.loading.pure import pure, visit
from hotlap.loading.unsuited import Unfit
from hotlap.patch.signals import comes_from_outside
from hotlap.runtime.silence import silenced
from tests.catalog.resident import outcome, resident


class Rows(Dataset):
    def __init__(self):
        self.values = torch.arange(8.0)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.values[index]


class Seeded(Rows):
    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        return index if info is None else info.seed


def asking(samples):
    return torch.stack(samples) + (torch.utils.data.get_worker_info() is not None)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("dataset", "options"), [(Seeded(), {}), (Subset(Seeded(), [1, 2]), {}), (Rows(), {"collate_fn": asking})]
)
def test_refuses_a_dataset_that_queries_its_worker(dataset, options, workers):
    with resident() as enabled:
        list(DataLoader(dataset, num_workers=workers, **options))
        assert outcome(enabled).status == "refused"
        assert "checks which worker it runs in" in outcome(enabled).why


@pytest.mark.parametrize(("workers", "status"), [(0, "applied"), (1, "no effect")])
def test_a_dataset_that_workers_initialise_needs_workers(workers, status):
    with resident() as enabled:
        list(DataLoader(Rows(), num_workers=workers, worker_init_fn=abs))
        assert outcome(enabled).status == status


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("workers", "ahead", "error"), [(1, None, TypeError), (1, 0, AssertionError), (-1, 2, AssertionError)]
)
def test_a_loader_whose_workers_torch_cannot_start_raises_as_in_torch(workers, ahead, error, constants):
    for module in (torch.utils.data._utils, torch.utils.data._utils.worker):
        constants(module, MP_STATUS_CHECK_INTERVAL=0.1)  # seconds for which an unfinished iterator waits
    with resident():
        loader = DataLoader(Rows())
        list(loader)
        loader.num_workers, loader.prefetch_factor = workers, ahead
        with pytest.raises(error):
            list(loader)
    gc.collect()  # here, not in another test: torch's unfinished iterator has an error when it is freed


def test_accepts_a_plain_loader_though_torchs_collate_queries_the_worker():
    with resident() as enabled:
        list(DataLoader(Rows(), num_workers=1))
        assert outcome(enabled).status == "applied"


class Printing(Rows):
    def __getitem__(self, index):
        print("item", index)
        return self.values[index]


def test_the_check_runs_no_user_code_and_happens_once(capsys, monkeypatch):
    data = Printing()
    for _ in range(2):
        with pytest.raises(Unfit, match="prints"):
            pure(data)
        monkeypatch.setattr(loading, "study_of", None)
    assert capsys.readouterr().out == ""


def test_refuses_where_calls_are_traced_or_all_warnings_shown():
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(Unfit, match="all warnings"):
            pure(Rows())
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        with pytest.raises(Unfit, match="traced"):
            pure(Rows())
    finally:
        sys.settrace(before)


def test_an_item_that_prints_late_disables_it_silently(capsys):
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
        assert "prints" in outcome(enabled).why
    assert capsys.readouterr().out == "odd 77\nodd 77\n"


class TimeUp(Exception):
    pass


class Slow(Rows):
    def __getitem__(self, index):
        signal.raise_signal(signal.SIGUSR1)


def test_an_error_in_a_signal_handler_is_not_blamed_on_the_dataset():
    def stop(*_):
        raise TimeUp

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with pytest.raises(TimeUp):
            visit(Slow(), [0])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not comes_from_outside(ValueError())


def test_several_threads_may_be_silenced_and_all_recover(capsys):
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
