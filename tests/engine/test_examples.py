"""The examples of the engine run as their first lines say, in processes that have already imported torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness import warmed_torchrun
from warm import warmed

EXAMPLES = Path(__file__).parents[2] / "examples"


def printed(*words, launcher=()):
    command = [*launcher, *warmed([sys.executable, str(EXAMPLES / words[0]), *map(str, words[1:])])]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def accuracy(lines):
    return float(lines[-1].split()[1].rstrip(","))


def test_a_table_trains_in_one_process_and_goes_on_in_two(tmp_path):
    assert accuracy(printed("engine_table.py", tmp_path, "--epochs", 3)) > 0.85
    lines = printed("engine_table.py", tmp_path, "--epochs", 5, launcher=warmed_torchrun("--no-python"))
    assert len(lines) == 1
    assert accuracy(lines) > 0.85
    assert (tmp_path / "customers.pt2").exists()


def test_windows_of_csv_files_train_an_lstm(tmp_path):
    """The charge varies by 0.7 from its mean."""
    assert accuracy(printed("engine_series.py", tmp_path, "--epochs", 4)) < 0.2
    assert accuracy(printed("engine_series.py", tmp_path, "--epochs", 5)) < 0.2


def test_a_folder_of_images_trains_in_two_phases(tmp_path):
    """Of ten kinds of digits: 0.8, and 0.1 to 0.2 after the head alone was trained."""
    assert accuracy(printed("engine_images.py", tmp_path / "digits", "--epochs", 6, "--images", 640)) > 0.6


def test_text_is_classified_by_a_transformer():
    assert accuracy(printed("engine_text.py", "--epochs", 3)) > 0.8
