"""Two ranks on one GPU decide together and keep equal weights."""

from __future__ import annotations

from pathlib import Path

from harness import TORCHRUN

from tests.control.test_ranks import check_ranks


def test_weights_of_ranks_on_a_gpu_stay_equal_to_the_bit(tmp_path: Path) -> None:
    check_ranks(TORCHRUN, "cuda", tmp_path)
