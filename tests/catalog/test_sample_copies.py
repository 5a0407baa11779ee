"""A kept copy has the sample's memory layout, and shares objects where the sample does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotlap.loading.copies import faithful_copy
from hotlap.loading.pure import warnings_raised
from hotlap.loading.unsuited import Unfit

X = torch.arange(48.0).reshape(6, 8)
TWICE = torch.ones(3)


@pytest.mark.parametrize(
    "sample",
    [
        X[:, 2:5],
        X[0].expand(3, 8),
        np.arange(48.0).reshape(6, 8)[:, ::2],
        {"image": TWICE, "target": TWICE},
        (TWICE, TWICE[:2]),
        [np.ones(4)] * 2,
    ],
    ids=["a crop", "expanded", "strided", "twice", "a part of the other", "one array twice"],
)
def test_rejects_samples_that_a_copy_would_alter(sample):
    with pytest.raises(Unfit):
        faithful_copy(torch, sample)


@pytest.mark.parametrize("sample", [X.t(), (X, 3, "three"), {"x": X, "y": np.ones(3)}, [torch.ones(2), torch.ones(2)]])
def test_copies_samples_whose_layout_survives(sample):
    assert str(faithful_copy(torch, sample)) == str(sample)


def test_other_threads_warn_as_usual_while_items_are_fetched():
    import threading
    import warnings

    raised = []

    def warns():
        try:
            warnings.warn("from a thread", DeprecationWarning, stacklevel=1)
        except DeprecationWarning as error:
            raised.append(error)

    with warnings_raised():
        with pytest.raises(DeprecationWarning):
            warnings.warn("from an item", DeprecationWarning, stacklevel=1)
        thread = threading.Thread(target=warns)
        thread.start()
        thread.join()
    assert raised == []


def test_signal_handlers_warn_as_usual_while_items_are_fetched():
    import os
    import signal
    import warnings

    seen = []

    def handler(*_):
        warnings.warn("from a handler", DeprecationWarning, stacklevel=1)
        seen.append(np.float32(1) / np.float32(0))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with warnings_raised():
                os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [np.inf]
