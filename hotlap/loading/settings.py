"""What pure operations depend on besides their arguments: settings of libraries, and functions they call."""

from __future__ import annotations

import sys
import warnings
from functools import lru_cache
from types import ModuleType
from typing import Any

from hotlap.loading.purity.library_types import OPERATORS
from hotlap.loading.purity.objects import without_our_layers

LOUD = frozenset({"always", "error", "all"})  # actions for warnings
HEARD = frozenset({"call", "log", "print"})  # and for numerical errors of NumPy
KERNELS_OF_TORCH = ("/Meta", "/CUDA", "/MPS")  # torch itself registers some of these in Python
SMALLEST = sys.float_info.min
MOST_PIXELS = (1 << 30) // 4 // 3  # of an image that Pillow opens without a warning, by default


def settings(torch: Any) -> tuple[Any, ...]:
    """Return the current settings. Called before each batch, so each takes microseconds at most."""
    collate, time = torch.utils.data._utils.collate, sys.modules["time"]  # not our copy: the zone may change
    return (
        are_warnings_shown_again(),
        warnings.showwarning,
        getattr(warnings, "_showwarnmsg_impl", None),
        torch.get_default_dtype(),
        getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None),
        torch.get_num_threads(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        _of_products(torch),
        torch._C._get_mkldnn_enabled(),
        torch._C._get_nnpack_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch._C._get_deterministic_fill_uninitialized_memory(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        replaced_kernels(torch),
        dict(collate.default_collate_fn_map),
        torch.stack,
        torch.as_tensor,
        torch.tensor,
        torch.cat,
        collate.collate,
        collate.default_collate,
        tuple(vars(torch._tensor_str.PRINT_OPTS).values()),
        time.tzname,
        time.timezone,
        _of_numpy(),
        _of_pandas(),
        _of_pillow(),
        SMALLEST * 0.5 == 0.0,  # torch.set_flush_denormal
        _of_tensors(torch.Tensor, tuple(map(vars(torch.Tensor).get, OPERATORS))),
        without_our_layers(torch.utils.data._utils.fetch._MapDatasetFetcher.fetch),
        without_our_layers(torch.utils.data.dataloader._SingleProcessDataLoaderIter._next_data),
    )


def replaced_kernels(torch: Any) -> frozenset[str]:
    """Return which of torch's own kernels the program has replaced by `torch.library`."""
    return _replaced_kernels(len(getattr(torch.library, "_impls", ())))


@lru_cache(maxsize=4)
def _replaced_kernels(count: int) -> frozenset[str]:  # few of the thousands that torch registers can be the program's
    registered = getattr(sys.modules["torch"].library, "_impls", ())
    return frozenset(key for key in registered if key.startswith("aten/") and not key.endswith(KERNELS_OF_TORCH))


def are_warnings_shown_again() -> bool:
    """Return whether the program is shown every warning of an item, not only the first of each kind."""
    global _filters
    if warnings.filters != _filters[0]:
        shown = any(
            action in LOUD and any(issubclass(kind, category) for kind in (RuntimeWarning, ResourceWarning))
            for action, _, category, *_ in warnings.filters
        )
        _filters = list(warnings.filters), shown
    return _filters[1]


_filters: tuple[list[Any], bool] = [], False  # the filters last looked at, and the answer


def are_errors_heard() -> bool:
    """Return whether the program hears of every numerical error of NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and not HEARD.isdisjoint(numpy.geterr().values())


def _of_products(torch: Any) -> Any:
    """Return the precision of matrix products; newer versions of torch have one for each backend and operation, and
    the older question is an error once a program has set one of these.
    """
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter is None:
        return torch.get_float32_matmul_precision()
    return getter("generic", "all"), *(getter("mkldnn", operation) for operation in ("all", "matmul", "conv"))


@lru_cache(maxsize=4)
def _of_tensors(tensors: Any, operators: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return how tensors compute, behind wrappers of hotlap's: early-read has one around `__float__`."""
    found = zip(OPERATORS, operators, strict=True)
    return tuple(without_our_layers(getattr(tensors, name, None) if own is None else own) for name, own in found)


def _of_numpy() -> Any:
    """Return NumPy's settings; NumPy 2 replaces them on change, in its own context variables."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    printing = sys.modules.get("numpy._core.printoptions")
    errors = getattr(sys.modules.get("numpy._core.umath"), "_extobj_contextvar", None)
    if printing is None or errors is None:
        return tuple(numpy.get_printoptions().values()), tuple(numpy.geterr().values())
    return printing.format_options.get(), errors.get(None)


def _of_pandas() -> list[Any]:
    """Return the options of pandas that are not at their defaults, as all are before pandas is imported."""
    config = sys.modules.get("pandas._config.config")
    if config is None:
        return []
    return [(name, held[name]) for held, name, default in _options(config) if held[name] is not default]


@lru_cache(maxsize=1)
def _options(config: ModuleType) -> list[tuple[dict[str, Any], str, Any]]:
    """Return the dictionary that holds each option, its name there, and its default."""
    defaults = getattr(config, "_registered_options", {})
    found: list[tuple[dict[str, Any], str, Any]] = []
    for key, option in defaults.items():
        *groups, name = key.split(".")
        held = getattr(config, "_global_config", {})
        for group in groups:
            held = held.get(group, {})
        if name in held:
            found.append((held, name, option.defval))
    return found


def _of_pillow() -> Any:
    """Return Pillow's settings, or their defaults while Pillow has not imported the modules that hold them."""
    files, images = sys.modules.get("PIL.ImageFile"), sys.modules.get("PIL.Image")
    strategy = getattr(sys.modules.get("PIL.GifImagePlugin"), "LOADING_STRATEGY", None)
    return (
        getattr(files, "LOAD_TRUNCATED_IMAGES", False),
        getattr(images, "MAX_IMAGE_PIXELS", MOST_PIXELS),
        getattr(strategy, "value", 0),
    )
