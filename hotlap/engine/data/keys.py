"""The key of a cache entry: a hash of inputs, function and arguments."""

from __future__ import annotations

import argparse
import dataclasses
import dis
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from hotlap.engine.data.errors import DataError, DataUnreadable

FORMAT = "2"
BLOCK = 2**20
SAMPLES = 16
SAMPLE_BYTES = 2**16
READS_OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")

Digest = Any  # of hashlib, which exports no type for it


def key_of(
    make: Callable[..., Any], inputs: Sequence[Path | str], arguments: Mapping[str, Any], version: str, identity: str
) -> str:
    if identity not in ("content", "sample"):
        raise DataError(f"unknown identity {identity!r}; use 'content' or 'sample'")
    digest = hashlib.blake2b(digest_size=16)
    for setting in (FORMAT, identity, version):
        add(digest, setting)
    add_function(digest, make)
    add(digest, dict(arguments))
    for name in inputs:
        add_path(digest, Path(name), identity)
    return str(digest.hexdigest())


def add_function(digest: Digest, make: Callable[..., Any]) -> None:
    """Hash its source and code, its defaults, and what it uses from its module and from the function around it."""
    if inspect.ismethod(make):
        raise DataError(f"{make.__qualname__} depends on its object, which is not in the key; give a plain function")
    text(digest, function_text(make))
    code, cells = getattr(make, "__code__", None), getattr(make, "__closure__", None) or ()
    add(digest, [getattr(make, "__defaults__", None), getattr(make, "__kwdefaults__", None)])
    for name, cell in zip(code.co_freevars if code else (), cells, strict=True):
        text(digest, name)
        if inspect.isfunction(cell.cell_contents) and cell.cell_contents is not make:
            add_function(digest, cell.cell_contents)
        elif cell.cell_contents is not make:
            add(digest, cell.cell_contents)
    if code is not None:
        for name in sorted(set(global_names(code))):
            add_global(digest, name, getattr(make, "__globals__", {}))


def function_text(make: Callable[..., Any]) -> str:
    """Return name, source if there is any, and code: two lambdas on one line have the same source."""
    name = f"{getattr(make, '__module__', '')}.{getattr(make, '__qualname__', type(make).__qualname__)}"
    code = getattr(make, "__code__", None)
    try:
        source = inspect.getsource(make)
    except (OSError, TypeError):  # typed at a prompt, or compiled
        source = ""
    if code is None and not source:
        raise DataError(f"{name} has no source to identify it by; give a plain function")
    return f"{name}\n{source}\n{constant_text(code)}"


def constant_text(value: Any) -> str:
    """Return a text that is the same in every process: the order of a set of texts is not."""
    if isinstance(value, CodeType):
        return f"{value.co_code.hex()} {value.co_names} {constant_text(value.co_consts)}"
    if isinstance(value, tuple | frozenset):
        items = [constant_text(item) for item in value]
        return f"{type(value).__name__} {items if isinstance(value, tuple) else sorted(items)}"
    return repr(value)


def global_names(code: CodeType) -> Iterator[str]:
    """Yield the names that the code, and the code inside it, reads from its module."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in READS_OF_GLOBALS:
            yield instruction.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from global_names(inner)


def add_global(digest: Digest, name: str, space: Mapping[str, Any]) -> None:
    """Hash a variable of the module by its value if that is plain; helpers, classes and modules are not in the key."""
    own = hashlib.blake2b(digest_size=16)
    try:
        if name in space:
            add(own, space[name])
    except (DataError, RecursionError):
        return
    text(digest, f"global {name} {own.hexdigest()}")


def add(digest: Digest, value: Any) -> None:
    """Hashes a value with its type and length, so that no two different values look the same."""
    if isinstance(value, np.ndarray | torch.Tensor):
        add_array(digest, value)
    elif isinstance(value, Mapping):
        text(digest, f"dict {len(value)}")
        for name in sorted(value, key=repr):
            add(digest, name)
            add(digest, value[name])
    elif isinstance(value, set | frozenset):
        add(digest, ["set", *sorted(value, key=repr)])
    elif isinstance(value, list | tuple):
        text(digest, f"list {len(value)}")
        for item in value:
            add(digest, item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        add(digest, [type(value).__qualname__, fields])
    elif isinstance(value, argparse.Namespace | SimpleNamespace):
        add(digest, [type(value).__qualname__, vars(value)])
    elif value is None or isinstance(
        value, bool | int | float | complex | str | bytes | Path | np.generic | torch.dtype
    ):
        text(digest, f"{type(value).__name__} {value!r}")
    else:
        raise DataError(f"an argument of type {type(value).__name__} cannot be part of a cache key; use plain values")


def add_array(digest: Digest, value: np.ndarray[Any, Any] | torch.Tensor) -> None:
    array = np.ascontiguousarray(numpy_of(digest, value) if isinstance(value, torch.Tensor) else value)
    text(digest, f"array {array.dtype.str} {array.shape}")
    if array.dtype.hasobject:
        raise DataError("an array of Python objects cannot be part of a cache key; use numbers or fixed text")
    digest.update(array.reshape(-1).view(np.uint8))
    if isinstance(value, np.ma.MaskedArray):
        add_array(digest, np.ma.getmaskarray(value))


def numpy_of(digest: Digest, tensor: torch.Tensor) -> Any:
    try:
        if tensor.dtype == torch.bfloat16:  # numpy has no such type
            text(digest, "bfloat16")
            tensor = tensor.detach().view(torch.int16)
        return tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:  # sparse, on no device, or of a type that numpy lacks
        raise DataError(f"a tensor of {tensor.dtype}, {tensor.layout}, cannot be part of a cache key") from error


def text(digest: Digest, value: str) -> None:
    encoded = value.encode()
    digest.update(f"{len(encoded)}:".encode())
    digest.update(encoded)


def add_path(digest: Digest, path: Path, identity: str) -> None:
    """Hash a file, or every file in a folder with its name there."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        text(digest, f"folder {len(files)}")
        for file in files:
            text(digest, str(file.relative_to(path)))
            add_file(digest, file, identity)
    else:
        add_file(digest, path, identity)


def add_file(digest: Digest, path: Path, identity: str) -> None:
    try:
        known = path.stat()
        with path.open("rb") as file:
            text(digest, f"file {known.st_size}")
            if identity == "sample":
                text(digest, f"time {known.st_mtime_ns}")
                for number in range(SAMPLES):
                    file.seek(number * max(known.st_size - SAMPLE_BYTES, 0) // (SAMPLES - 1))
                    digest.update(file.read(SAMPLE_BYTES))
            else:
                while block := file.read(BLOCK):
                    digest.update(block)
    except OSError as error:
        raise DataUnreadable(
            path, "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
        ) from error
