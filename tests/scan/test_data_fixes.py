"""Fixes of the data path produce programs that load the same data."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hotlap.scanning import FindingFilter, repair_text

HEAD = """\
import numpy as np
import pandas as pd
import torch
from torch.utils.data import Dataset

"""
COLUMNS = """\
class Rows(Dataset):
    def __init__(self, frame: pd.DataFrame):
        frame["double"] = frame["a"].apply(lambda x: x * 2)
        frame["sum"] = frame["b"] + frame["a"].apply(lambda x: x - 1) * 3
        frame["hot"] = frame.a.apply(lambda value: value > 2)
        frame["kept"] = frame["a"].apply(lambda x: x * x)
        frame["name"] = frame["a"].apply(lambda x: f"{x}")
        self.frame = frame
"""
COPIED = """\
class Rows(Dataset):
    def __init__(self, frame: pd.DataFrame):
        self.first = frame.reset_index(drop=True).copy()  # as it was
        self.second = frame[frame["a"] > 1].copy()
        self.first["a"] = 0
        self.frame = frame
"""
MAPPED = """\
class Rows(Dataset):
    def __init__(self, path):
        self.path = path

    def __getitem__(self, index):
        return torch.tensor(np.load(self.path)[index])
"""


def frame() -> pd.DataFrame:
    return pd.DataFrame({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5]})


def made(text: str, argument: object):
    space: dict = {}
    exec(compile(text, "train.py", "exec"), space)
    return space["Rows"](argument)


def repaired(text: str, code: str, unsafe: bool = False) -> str:
    return repair_text(HEAD + text, FindingFilter(select=(code,)), unsafe)


def test_the_arithmetic_of_a_lambda_moves_to_the_column():
    assert repaired(COLUMNS, "D304") == HEAD + COLUMNS, "rounding may differ: only when asked for"
    fixed = repaired(COLUMNS, "D304", unsafe=True)
    assert 'frame["double"] = frame["a"] * 2\n' in fixed
    assert 'frame["sum"] = frame["b"] + (frame["a"] - 1) * 3\n' in fixed
    assert 'frame["hot"] = frame.a > 2\n' in fixed
    assert "lambda x: x * x" in fixed
    assert 'lambda x: f"{x}"' in fixed
    pd.testing.assert_frame_equal(made(fixed, frame()).frame, made(HEAD + COLUMNS, frame()).frame)
    assert repair_text(fixed, FindingFilter(select=("D304",)), unsafe=True) == fixed


def test_a_redundant_copy_is_removed_and_the_original_frame_is_unchanged():
    fixed = repaired(COPIED, "D305")
    assert "self.first = frame.reset_index(drop=True)  # as it was\n" in fixed
    assert 'frame[frame["a"] > 1].copy()' in fixed
    before, after = made(HEAD + COPIED, frame()), made(fixed, frame())
    for name in ("first", "second", "frame"):
        pd.testing.assert_frame_equal(getattr(after, name), getattr(before, name))


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_mapped_array_gives_the_same_rows(tmp_path, dtype):
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(12, dtype=dtype).reshape(4, 3))
    assert repaired(MAPPED, "D301") == HEAD + MAPPED
    fixed = repaired(MAPPED, "D301", unsafe=True)
    assert 'np.load(self.path, mmap_mode="r")[index]' in fixed
    assert made(fixed, path)[2].equal(made(HEAD + MAPPED, path)[2])
