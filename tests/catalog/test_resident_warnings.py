"""Torch's warnings about a new iterator also appear under hotlap, with torch's own location."""

import os
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.catalog.resident import outcome, resident


class Squares(Dataset):
    def __init__(self):
        self.values = torch.arange(64.0)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.values[index] ** 2


def warnings_of(workers, persistent):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")  # once each
        loader = DataLoader(
            Squares(), 8, num_workers=workers, pin_memory=True, persistent_workers=persistent and workers > 0
        )
        for _ in range(3):
            list(loader)
    return [(str(warning.message), warning.filename, warning.lineno) for warning in seen]


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU nothing is to be said of pinned memory")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [0, 1, os.cpu_count() + 1])
def test_warnings_keep_torchs_own_text_and_location(workers, persistent):
    plain = warnings_of(workers, persistent)
    assert plain
    with resident() as enabled:
        assert warnings_of(workers, persistent) == plain
        assert outcome(enabled).status == "applied", outcome(enabled)
