"""Functions listed as returning new memory never return their argument's, whatever arrays they are called with."""

from __future__ import annotations

import importlib
import statistics
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from hotlap.loading.purity import pure_operations
from hotlap.loading.purity.pure_operations import Gives
from hotlap.loading.purity.rules import rule_of

WHOLE = [name for name in pure_operations.WHOLE_MODULES if not name.startswith(("torch", "numpy", "scipy"))]
MODULES = (np, np.linalg, np.fft, torch, torch.fft, torch.linalg, torch.nn.functional)
MODULES += (statistics, *(importlib.import_module(name) for name in WHOLE))
SHAPES = ((4,), (4, 4), (1,), (1, 1), (), (2, 4, 4))
TYPES = ("float32", "int64", "bool", "complex64", "uint8", "float64")
MORE: tuple[tuple[Any, ...], ...] = ((), (0,), (1,), (-1,), ((0,),), ((1, 0),), (0, 1), (None,))
OF_THE_MODULE = {"show_config", "test", "info", "lookfor", "show_runtime"}  # which print


def listed() -> Iterator[tuple[str, Any]]:
    for module in MODULES:
        for name in sorted(dir(module)):
            function = getattr(module, name)
            if name in OF_THE_MODULE or not callable(function) or isinstance(function, np.ufunc):
                continue
            if rule_of(function) in (Gives.NEW, Gives.ORDERED):
                yield f"{module.__name__}.{name}", function


def arrays(name: str) -> Iterator[Any]:
    for kind in TYPES:
        for shape in SHAPES:
            array = np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(kind)
            yield torch.from_numpy(array.copy()) if name.startswith("torch") else array


def shares(given: Any, made: Any) -> bool:
    if isinstance(made, tuple | list):
        return any(shares(given, value) for value in made)
    if isinstance(given, np.ndarray) and isinstance(made, np.ndarray):
        return made is given or (made.size > 0 and np.shares_memory(given, made))
    if isinstance(given, torch.Tensor) and isinstance(made, torch.Tensor) and made.numel():
        return made.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    return False


@pytest.mark.parametrize(("name", "function"), [pytest.param(*case, id=case[0]) for case in listed()])
def test_returns_new_memory(name: str, function: Any) -> None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for array in arrays(name):
            for more in MORE:
                if writes_into_its_argument(name, more):
                    continue
                try:
                    made = function(array, *more)
                except Exception:  # noqa: BLE001, S112 these arguments are not for this function
                    continue
                assert not shares(array, made), (array.dtype, array.shape, more)


def writes_into_its_argument(name: str, more: tuple[Any, ...]) -> bool:
    """Some flags make a function write into its argument, as written_by knows."""
    flags = {"relu": 1, "silu": 1, "leaky_relu": 2, "elu": 2, "hardtanh": 3, "nan_to_num": 1}
    return len(more) >= flags.get(name.rpartition(".")[2], 9)
