"""loader-pinned chooses which loaders to pin; tests/cuda has the pinning itself."""

import pytest
import torch
from catalog.loading import Random, Rows, Stream, applied, outcome, shuffled
from observations import loader, observation, on_cuda
from torch.utils.data import default_collate

from hotlap.catalog import entries
from hotlap.catalog.loader_pinned.apply import check
from hotlap.records.plan import Status
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.loader_arguments import LoaderArguments

NAME = "loader-pinned"


def loader_arguments(dataset=None, **given):
    return LoaderArguments(
        torch, {"dataset": dataset or Rows(), "num_workers": 1, "batch_size": 4, "collate_fn": default_collate, **given}
    )


class Bag:
    def __init__(self, row):
        self.row = row


class Bags(Rows):
    def __getitem__(self, index):
        return Bag(self.rows[index])


def test_plain_batches_from_workers_are_pinned():
    check(loader_arguments(), pinned=False)


@pytest.mark.parametrize(
    ("made", "pinned", "status", "said"),
    [
        (loader_arguments(), True, Status.NO_EFFECT, "already pins its batches"),
        (loader_arguments(num_workers=0), False, Status.NO_EFFECT, "have to copy the batches of Rows"),
        (loader_arguments(Stream()), False, Status.REFUSED, "a stream"),
        (loader_arguments(Bags()), False, Status.REFUSED, "hold objects"),
        (loader_arguments(collate_fn=tuple), False, Status.REFUSED, "a custom collate_fn"),
        (loader_arguments(Random("torch")), False, Status.REFUSED, "draws random numbers"),
    ],
)
def test_other_batches_are_left_unchanged(made, pinned, status, said):
    with pytest.raises(EntryDeclined, match=said) as caught:
        check(made, pinned)
    assert caught.value.status is status


def test_without_a_gpu_it_has_no_effect(answering):
    answering(torch.cuda, device_count=0)
    with applied(NAME) as running:
        list(shuffled(num_workers=1))
        assert outcome(running) == ("no effect", "no GPU that torch can use")


@pytest.mark.filterwarnings("ignore:.*no accelerator")
def test_workers_start_with_pinning_and_the_loader_keeps_its_setting(answering):
    """CUDA counts as in use here; torch itself finds no device and pins nothing."""
    answering(torch.cuda, device_count=1, is_initialized=True)
    answering(torch.accelerator, is_available=False)
    with applied(NAME) as running:
        loader = shuffled(num_workers=1)
        assert not loader.pin_memory
        list(loader)
        assert outcome(running) == ("applied", "batches of Rows from 1 workers")
        assert not loader.pin_memory


def test_estimates_its_gain_from_the_time_of_copies():
    detect = entries()[NAME].detect
    assert detect(on_cuda(shares={"copy": 0.3}, loaders=(loader(workers=2),))).most == 0.3
    assert detect(on_cuda(shares={"copy": 0.3}, loaders=(loader(workers=2, pin_memory=True),))) is None
    assert detect(observation(shares={"copy": 0.3}, loaders=(loader(workers=2),))) is None
