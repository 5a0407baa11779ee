"""loader-pinned: which loaders; that the batches are pinned is tested on a GPU (tests/cuda)."""

from collections import namedtuple

import pytest
import torch
from catalog.loading import Rows, Stream, applied, outcome, shuffled
from observations import loader, observation, on_cuda

from hotlap.catalog import entries
from hotlap.catalog.loader_pinned.apply import check
from hotlap.catalog.making import Making, NoEffect, Refused

NAME = "loader-pinned"
Pair = namedtuple("Pair", "inputs targets")


class Bag:
    def __init__(self, rows):
        self.rows = rows


def making(dataset=None, **given):
    return Making(torch, {"dataset": dataset or Rows(), "num_workers": 1, "batch_size": 4, **given})


@pytest.mark.parametrize("collate", [None, tuple, lambda rows: Pair(*rows[0]), lambda rows: {"a": rows[0]}])
def test_plain_batches_of_workers_are_pinned(collate):
    check(making(collate_fn=collate), pinned=False, under_way=False)


@pytest.mark.parametrize(
    ("made", "state", "error", "said"),
    [
        (making(), (True, False), NoEffect, "pins already"),
        (making(), (False, True), NoEffect, "have started already"),
        (making(num_workers=0), (False, False), NoEffect, "copy the batches of Rows once more"),
        (making(Stream()), (False, False), Refused, "a stream"),
        (making(collate_fn=Bag), (False, False), Refused, "hold objects"),
    ],
)
def test_others_are_left_as_they_are(made, state, error, said):
    with pytest.raises(error, match=said):
        check(made, *state)


def test_without_a_gpu_it_has_no_effect(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with applied(NAME) as running:
        list(shuffled(num_workers=1))
        assert outcome(running) == ("no effect", "no GPU that torch can use")


def test_the_switch_is_thrown_before_an_epoch_and_taken_back(monkeypatch):
    """As on a machine with CUDA in use; torch itself then finds no device and pins nothing."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with applied(NAME) as running:
        loader = shuffled(num_workers=1)
        assert not loader.pin_memory
        with pytest.warns(UserWarning, match="no accelerator"):
            list(loader)
        assert loader.pin_memory
        assert outcome(running) == ("applied", "batches of Rows from 1 workers")
    assert not loader.pin_memory


def test_what_it_could_save_is_the_copies():
    detect = entries()[NAME].detect
    assert detect(on_cuda(shares={"copy": 0.3}, loaders=(loader(workers=2),))).most == 0.3
    assert detect(on_cuda(shares={"copy": 0.3}, loaders=(loader(workers=2, pin_memory=True),))) is None
    assert detect(observation(shares={"copy": 0.3}, loaders=(loader(workers=2),))) is None
