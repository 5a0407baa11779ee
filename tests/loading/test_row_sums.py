"""Checksums of rows reveal every write, and leave the memory for the program to free."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch

from hotlap.loading.groups import ArrayRows

ARRAYS = {
    "doubles": np.random.default_rng(0).normal(size=(40, 6)),
    "bytes, an odd number": np.random.default_rng(0).integers(0, 255, (40, 3, 5), "uint8"),
    "halves, an odd number": torch.randn(40, 7).half(),
    "a tensor": torch.randn(40, 3, 4),
    "rows longer than a piece": np.zeros((3, 300_000)),
    "short rows, many": np.zeros((3000, 2), "float32"),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_a_row_that_was_written_into_differs(what):
    array = ARRAYS[what]
    sums, before = ArrayRows(lambda: array), array.clone() if isinstance(array, torch.Tensor) else array.copy()
    flat = array.reshape(len(array), -1)
    for row in (0, 1, len(array) - 1):
        for column in (0, flat.shape[1] // 2, flat.shape[1] - 1):
            flat[row, column] += 1
            assert sums.differ(np.array([row]))
            assert not sums.differ(np.array([index for index in (0, 1, len(array) - 1) if index != row]))
            flat[row, column] = before.reshape(len(array), -1)[row, column]
            assert not sums.differ(np.arange(len(array)))


def test_swapped_values_differ():
    array = np.arange(80.0).reshape(20, 4)
    sums = ArrayRows(lambda: array)
    array[3, [0, 1]] = array[3, [1, 0]]
    assert sums.differ(np.array([3]))


@pytest.mark.parametrize(
    ("array", "total"),
    [
        (np.zeros((5, 4)), 6),
        (np.zeros((5, 4))[:, ::2], 5),
        (np.zeros(()), 1),
        (torch.zeros(5, 4).t(), 4),
        (np.zeros((5, 0)), 5),
        ("text", 4),
    ],
)
def test_rejects_arrays_without_rows(array, total):
    assert not ArrayRows.suits(array, total)


def test_does_not_lock_the_memory_it_sums():
    memory = mmap.mmap(-1, 40 * 48)
    held = [np.frombuffer(memory, "float64").reshape(40, 6)]
    sums = ArrayRows(lambda: held[0])
    assert not sums.differ(np.array([1, 2]))
    held.clear()
    memory.close()
    tensor = torch.zeros(40, 6)
    assert not ArrayRows(lambda: tensor).differ(np.array([0]))
    tensor.resize_(80, 6)
