"""How reports write numbers, ratios, sizes and paths."""

import pytest

from hotlap.records.figures import number, times
from hotlap.report.shared.figures import count, megabytes, parts_of, quantile, short_path


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (99.96, "100"), (28.84, "28.8"), (1.0, "1.0"), (0.996, "1.0"), (0.5, "0.50"),
     (0.0042, "0.0042"), (0.0, "0.0"), (None, "–"), (float("nan"), "nan")],
)  # fmt: skip
def test_numbers_have_three_significant_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(("ratio", "text"), [(3.44, "3.4×"), (1.02, "1.02×"), (1.1, "1.1×"), (12.3, "12×")])
def test_ratios_are_written_with_a_times_sign(ratio, text):
    assert times(ratio) == text


def test_parts_add_up_and_the_largest_remainder_is_rounded_up():
    assert parts_of(100, [1, 1, 1]) == [34, 33, 33]
    assert parts_of(100, [0.006, 0.004, 0.99]) == [1, 0, 99]
    assert parts_of(7, [0, 0]) == [0, 0]


def test_quantiles_ignore_nan_and_are_missing_without_values():
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([1.0, float("nan")], 0.9) == 1.0
    assert quantile([], 0.5) is None


def test_sizes_and_counts_have_a_unit():
    assert megabytes(1850.0) == "1.9 GB"
    assert megabytes(None) == "–"
    assert count(1_200_000) == "1.2 M"
    assert count(999) == "999"


@pytest.mark.parametrize(
    ("file", "directory", "short"),
    [
        ("/home/ann/p/a/b.py", "/home/ann/p", "a/b.py"),
        ("/home/ann/p/b.py", "/home/ann/p/", "b.py"),
        ("/home/ann/p2/b.py", "/home/ann/p", "/home/ann/p2/b.py"),
        ("/x/lib/python3.11/site-packages/torch/nn/m.py", "/home", "torch/nn/m.py"),
        ("/home/a.py", "", "/home/a.py"),
        ("/a.py", "/", "/a.py"),
    ],
)
def test_paths_are_relative_to_the_folder_or_the_package(file, directory, short):
    assert short_path(file, directory) == short
