"""Numbers that are not float32: sums in half precision, choices of integers, columns of empty files."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from hotlap.engine import RMSE, Mean
from hotlap.engine.config import ConfigInvalid, converted
from hotlap.engine.data import ChainReader, Parquet
from hotlap.engine.data.errors import DataUnreadable


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_metrics_of_half_precision_outputs_do_not_overflow(dtype):
    predicted, actual = torch.full((1000, 1), 300.0, dtype=dtype), torch.ones(1000, 1, dtype=dtype)
    rmse, mean = RMSE(), Mean(lambda outputs, target: (outputs - target).abs().flatten())
    for metric in (rmse, mean):
        metric.update(predicted, actual)
        assert metric.compute().item() == pytest.approx(299.0, rel=0.01)


def test_a_choice_of_integers_accepts_no_floats():
    assert converted(1, Literal[1, 2], "file", "key") == 1
    with pytest.raises(ConfigInvalid):
        converted(1.0, Literal[1, 2], "file", "key")


def test_empty_files_are_skipped_and_duplicate_columns_are_rejected(tmp_path):
    table = pa.table({"a": pa.array(range(8)), "b": pa.array([[0.5, 1.5]] * 8)})
    for name, part in (("whole", table), ("empty", table.slice(0, 0))):
        parquet.write_table(part, tmp_path / f"{name}.parquet")
    files = [Parquet(tmp_path / f"{name}.parquet", "a", "b") for name in ("empty", "whole", "empty")]
    assert ChainReader(*files).rows == 8
    assert ChainReader(files[0]).rows == 0
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    parquet.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(DataUnreadable, match=r"twice.parquet.*exists 2 times"):
        Parquet(tmp_path / "twice.parquet", "a")
