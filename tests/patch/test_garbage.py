"""Nothing of ours leaves a reference cycle, which the program's `gc.collect()` would find and count."""

from __future__ import annotations

import gc
import json

import numpy
import pytest
import torch

from hotlap.loading.bits import bytes_of
from hotlap.loading.pure import warnings_raised
from hotlap.records.codec import to_json
from tests import observations


def fetch():
    with warnings_raised():
        pass


def save():
    to_json(observations.observation())


def view():
    for size in (3, 1000):
        assert bytes(bytes_of(torch.ones(size, dtype=torch.uint8))) == b"\1" * size
        assert bytes(bytes_of(numpy.ones(size, dtype=numpy.uint8))) == b"\1" * size


@pytest.mark.parametrize("ours", [fetch, save, view])
def test_leaves_no_cycle(ours):
    ours()  # what is made only once
    gc.collect()
    gc.disable()
    try:
        ours()
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("record", [{}, [], {"a": [], "b": {}}, [1, 2.5, True, None, "é\n"], {"a": {"b": [[1], {}]}}])
def test_a_record_is_laid_out_as_by_json_dumps(record):
    assert to_json(record) == json.dumps(record, indent=1, ensure_ascii=False) + "\n"
