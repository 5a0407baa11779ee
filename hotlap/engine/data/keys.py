"""The key of a cache entry: a hash of inputs, function and arguments."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch

from hotlap.engine.data.errors import DataError, DataUnreadable

FORMAT = "1"
BLOCK = 2**20
SAMPLES = 16
SAMPLE_BYTES = 2**16

Digest = Any  # of hashlib, which names no type for it


def key_of(
    make: Callable[..., Any], inputs: Sequence[Path | str], arguments: Mapping[str, Any], version: str, identity: str
) -> str:
    if identity not in ("content", "sample"):
        raise DataError(f"identity {identity!r} is not known; use 'content' or 'sample'")
    digest = hashlib.blake2b(digest_size=16)
    for part in (FORMAT, identity, version):
        add(digest, part)
    add_function(digest, make)
    add(digest, dict(arguments))
    for name in inputs:
        add_path(digest, Path(name), identity)
    return str(digest.hexdigest())


def add_function(digest: Digest, make: Callable[..., Any]) -> None:
    """Its source, its defaults, and what it uses of the function around it."""
    if inspect.ismethod(make):
        raise DataError(f"{make.__qualname__} depends on its object, which is in no key; give a plain function")
    text(digest, function_text(make))
    code, cells = getattr(make, "__code__", None), getattr(make, "__closure__", None) or ()
    add(digest, [getattr(make, "__defaults__", None), getattr(make, "__kwdefaults__", None)])
    for name, cell in zip(code.co_freevars if code else (), cells, strict=True):
        text(digest, name)
        if inspect.isfunction(cell.cell_contents) and cell.cell_contents is not make:
            add_function(digest, cell.cell_contents)
        elif cell.cell_contents is not make:
            add(digest, cell.cell_contents)


def function_text(make: Callable[..., Any]) -> str:
    """Name and source; without source (typed at a prompt, compiled) its code and constants."""
    name = f"{getattr(make, '__module__', '')}.{getattr(make, '__qualname__', type(make).__qualname__)}"
    try:
        return f"{name}\n{inspect.getsource(make)}"
    except (OSError, TypeError):
        code = getattr(make, "__code__", None)
        if code is None:
            raise DataError(f"{name} has no source to know it by; give a plain function") from None
        return f"{name}\n{code_text(code)}"


def code_text(code: CodeType) -> str:
    constants = [code_text(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def add(digest: Digest, value: Any) -> None:
    """Hashes a value with its type and length, so that no two different values look the same."""
    if isinstance(value, np.ndarray | torch.Tensor):
        array = np.ascontiguousarray(value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value)
        text(digest, f"array {array.dtype.str} {array.shape}")
        if array.dtype.hasobject:
            raise DataError("an array of Python objects cannot be part of a cache key; use numbers or fixed text")
        digest.update(array.reshape(-1).view(np.uint8))
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
    elif value is None or isinstance(
        value, bool | int | float | complex | str | bytes | Path | np.generic | torch.dtype
    ):
        text(digest, f"{type(value).__name__} {value!r}")
    else:
        raise DataError(f"an argument of type {type(value).__name__} cannot be part of a cache key; use plain values")


def text(digest: Digest, value: str) -> None:
    encoded = value.encode()
    digest.update(f"{len(encoded)}:".encode())
    digest.update(encoded)


def add_path(digest: Digest, path: Path, identity: str) -> None:
    """A file, or every file in a folder with its name there."""
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
