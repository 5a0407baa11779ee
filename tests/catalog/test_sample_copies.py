"""Samples that are kept: a copy is laid out as the sample is, and what is one in the sample is one in the copy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotlap.catalog.sample_cache.copies import faithful_copy
from hotlap.loading.pure import Unfit, warnings_raised

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
def test_what_a_copy_is_not_is_not_kept(sample):
    with pytest.raises(Unfit):
        faithful_copy(torch, sample)


@pytest.mark.parametrize("sample", [X.t(), (X, 3, "three"), {"x": X, "y": np.ones(3)}, [torch.ones(2), torch.ones(2)]])
def test_what_is_laid_out_alike_is(sample):
    assert str(faithful_copy(torch, sample)) == str(sample)


def test_other_threads_warn_as_ever_while_items_are_fetched():
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


def test_so_do_handlers_of_signals():
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
