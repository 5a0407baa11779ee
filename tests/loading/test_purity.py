"""The reader recognises pure datasets and gives a reason for every other one."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, StackDataset, Subset

from hotlap.loading.purity import Impure, study_of, study_of_collate
from hotlap.loading.purity.calls import FETCHING
from tests.loading import impure_sets, impure_writes, pure_sets

IMPURE = impure_writes.CASES  # and those of impure_sets


@pytest.mark.parametrize("name", IMPURE)
def test_an_impure_habit_is_not_called_pure(name):
    words, dataset = IMPURE[name]
    with pytest.raises(Impure) as why:
        study_of(dataset)
    assert words in str(why.value)


@pytest.mark.parametrize("kind", [Subset, ConcatDataset, StackDataset])
def test_a_wrapper_of_an_impure_dataset_is_not_called_pure(kind):
    inner = IMPURE["Counts"][1]
    with pytest.raises(Impure, match=r"sets self\.n"):
        study_of(Subset(inner, [1, 2]) if kind is Subset else kind([inner]) if kind is ConcatDataset else kind(inner))


def test_a_user_module_may_share_a_name_with_the_standard_library(tmp_path, monkeypatch):
    for name in ("math_helpers", "statistics"):
        (tmp_path / f"{name}.py").write_text("CALLS = []\ndef scaled(x):\n    CALLS.append(1)\n    return x\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("math_helpers", "statistics"):
        with pytest.raises(Impure, match="writes into CALLS"):
            study_of(impure_sets.CallsItsModule(module=importlib.import_module(name)))
        sys.modules.pop(name)


@pytest.mark.parametrize("name", pure_sets.CASES)
def test_a_pure_dataset_is_not_refused(name):
    assert not study_of(pure_sets.CASES[name]).result.nothing


@pytest.mark.parametrize("collate", pure_sets.COLLATES, ids=lambda collate: collate.__name__)
def test_a_pure_collate_fn_is_not_refused(collate):
    study_of_collate(collate, study_of(pure_sets.CASES["a list"]).result)


@pytest.mark.parametrize("collate", impure_sets.COLLATES, ids=lambda collate: collate.__name__)
def test_an_impure_collate_fn_is_not_called_pure(collate):
    with pytest.raises(Impure):
        study_of_collate(collate, study_of(pure_sets.CASES["a list"]).result)


@pytest.mark.parametrize(
    ("kind", "name"), [(torch.Tensor, "__mul__"), (torch.Tensor, "__getitem__"), (Image.Image, "__array_interface__")]
)
def test_operators_that_the_program_has_replaced_are_not_pure(kind, name, monkeypatch):
    monkeypatch.setattr(kind, name, lambda self, *_: 1.0)
    with pytest.raises(Impure, match=f"has replaced {kind.__name__}.{name}"):
        study_of(torch.utils.data.TensorDataset(torch.zeros(3)))


class Rotated(torch.utils.data.Dataset):
    def __init__(self, images):
        self.images = images

    def __getitem__(self, index):
        return np.array(Image.fromarray(self.images[index]).rotate(3))

    def __len__(self):
        return len(self.images)


def test_methods_of_libraries_that_the_program_has_replaced_are_not_pure(monkeypatch):
    dataset = Rotated(np.zeros((4, 2, 2), dtype=np.uint8))
    study_of(dataset)
    usual = Image.Image.rotate
    monkeypatch.setattr(Image.Image, "rotate", lambda self, angle: usual(self, angle + 90))
    with pytest.raises(Impure, match="replaced in Image"):
        study_of(dataset)


class Paired(torch.utils.data.Dataset):
    """An item is made from two rows, of which only one is that of its index."""

    def __init__(self):
        self.rows = torch.zeros(8, 2)

    def __getitem__(self, index):
        first, second = self.rows[[index, 7 - index]]
        return first - second

    def __len__(self):
        return 8


def test_a_list_of_indices_reads_more_than_the_row_of_the_item():
    dataset = Paired()
    assert id(dataset.rows) not in study_of(dataset).by_row


def test_the_reason_names_the_file_and_the_line():
    line = impure_sets.Counts.__getitem__.__code__.co_firstlineno + 1
    with pytest.raises(Impure, match=rf"^impure_sets\.py:{line} sets self\.n, which outlives the call$"):
        study_of(IMPURE["Counts"][1])


def test_draws_from_seeded_streams_are_allowed_where_requested():
    for name in ("NumpyStream", "TorchStream", "PythonStream", "InPlaceDraw"):
        study_of(IMPURE[name][1], draws=True)
    for name in ("NumpyGenerator", "TorchGenerator", "Counts"):
        with pytest.raises(Impure):
            study_of(IMPURE[name][1], draws=True)


def test_rows_of_library_datasets_are_read_without_their_code():
    """A stand-in bears the library's name, so the library is not needed to test hotlap."""
    source = "class Dataset:\n" + "".join(f"    def {name}(self, *_): raise OSError\n" for name in FETCHING)
    module = ModuleType("datasets.arrow_dataset")
    exec(source, vars(module))  # there is no file of it to be read
    rows = module.Dataset()
    names = ("_data", "_indices", "_format_type", "_format_columns", "_output_all_columns", "_fingerprint")
    vars(rows).update(dict.fromkeys(names), _format_kwargs={})
    study = study_of(rows)
    assert {name for _, name in study.attributes.values()} >= set(names)
    assert study_of(Subset(rows, [0, 1])).attributes
