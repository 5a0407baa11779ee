"""Reads the files a process saved by their content: tensors by their numbers, the rest by its bytes.

Pickles are read without constructing anything they name: a class in them is only a name here.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pickle
import re
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotlap.records.traces import Fingerprint, SavedFile

BUCKETS = 16
MOST_PARTS = 256  # tensors of one file that are reported one by one
MOST_FILES = 400
MOST_BYTES = 4 << 30  # read of all files together
TEXT = frozenset(".txt .csv .tsv .json .jsonl .log .yaml .yml .md .toml .ini .xml .html".split())
NUMBER = re.compile(r"[-+]?[A-Za-z_]*\d[\w.]*(?:(?<=[eE])[-+]\d+)?")
DTYPES = {
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "LongStorage": "<i8", "IntStorage": "<i4",
    "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?", "BFloat16Storage": "bf16",
    "ComplexFloatStorage": "<c8", "ComplexDoubleStorage": "<c16",
}  # fmt: skip
SAFETENSORS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
    "BOOL": "?", "BF16": "bf16",
}  # fmt: skip


def saved_files(scratch: Path) -> tuple[tuple[SavedFile, ...], tuple[str, ...]]:
    """Return the files below the scratch folder, by the paths the program used, and a note on each one left out."""
    found, cut, left = list[SavedFile](), list[str](), MOST_BYTES
    for path in sorted(_files(scratch)):
        size = path.stat().st_size
        if len(found) >= MOST_FILES or size > left:
            cut.append(f"{path.name} (too many files, or too large ones, were saved)")
            continue
        left -= size
        with suppress(OSError):
            found.append(saved_file(path, "/" + str(path.relative_to(scratch))))
    return tuple(found), tuple(cut)


def _files(scratch: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(scratch):
        for name in names:
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink():
                yield path


def saved_file(path: Path, name: str) -> SavedFile:
    return replace(_by_content(path, name), mode=stat.S_IMODE(path.stat().st_mode))


def _by_content(path: Path, name: str) -> SavedFile:
    for kind, read in (("torch", _torch), ("safetensors", _safetensors), ("numpy", _numpy)):
        with suppress(Exception):  # not of this kind after all, or damaged: compared as bytes
            if (known := read(path)) is not None:
                rest, tensors = known
                parts = tuple(_fingerprint(label, array) for label, array in tensors[:MOST_PARTS])
                more = [_fingerprint(label, array).digest for label, array in tensors[MOST_PARTS:]]
                digest = _digest(f"{rest} {more}".encode())
                return SavedFile(path=name, kind=kind, digest=digest, words="", parts=parts)
    data = _file_digest(path)
    if path.suffix.lower() in TEXT:
        words = NUMBER.sub("#", path.read_text(encoding="utf-8", errors="replace"))
        return SavedFile(path=name, kind="text", digest=data, words=_digest(words.encode(errors="replace")))
    return SavedFile(path=name, kind="bytes", digest=data, words="")


Known = tuple[str, list[tuple[str, Any]]]  # everything but tensors as text, and the tensors by name


# Torch: a zip of one pickle and the memory of its tensors


class _PickleStandIn:
    """Stands in for whatever a pickle constructs; each class in it becomes a subclass of this, with its name."""

    name = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__new__(cls)
        made.args, made.state, made.items = (*args, *kwargs.items()), None, []
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args: tuple[Any, ...]
        self.state: Any
        self.items: list[Any]

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def append(self, value: Any) -> None:
        self.items.append(value)

    def extend(self, values: Any) -> None:
        self.items.extend(values)

    add = append


class _Storage(_PickleStandIn):
    name = "storage"


class _Dict(dict[Any, Any]):
    """An OrderedDict, which may carry attributes."""

    def __setstate__(self, state: Any) -> None:
        self["attributes"] = state


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = f"{module}.{name}"
        return _Dict if known == "collections.OrderedDict" else type(name, (_PickleStandIn,), {"name": known})

    def persistent_load(self, pid: Any) -> Any:
        return _Storage(*pid)


def _torch(path: Path) -> Known | None:
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        pickled = next((name for name in names if name.endswith("/data.pkl")), None)
        if pickled is None:
            return None
        top = pickled.removesuffix("data.pkl")
        loaded = _Reader(io.BytesIO(archive.read(pickled))).load()
        walk = _Walk(lambda key: archive.read(f"{top}data/{key}"))
        walk.over(loaded)
        others = [name for name in names if not name.startswith((f"{top}data/", f"{top}.")) and name != pickled]
        walk.words += [f"{name.removeprefix(top)} {_digest(archive.read(name))}" for name in sorted(others)]
    return _digest("\n".join(walk.words).encode(errors="replace")), walk.tensors


class _Walk:
    """Collects tensors by the path that leads to them, and everything else in words, shared objects included."""

    def __init__(self, storage: Callable[[str], bytes]) -> None:
        self._storage = storage
        self._seen: set[int] = set()
        self.tensors: list[tuple[str, Any]] = []
        self.words: list[str] = []

    def over(self, value: Any, name: str = "") -> None:
        if isinstance(value, dict | list | _PickleStandIn) and id(value) in self._seen:
            self.words.append(f"{name} again")
        elif isinstance(value, _PickleStandIn):
            self._over_named(value, name)
        elif isinstance(value, dict | list | tuple):
            self._over_parts(value, name)
        elif isinstance(value, type) and issubclass(value, _PickleStandIn):
            self.words.append(f"{name} is {value.name}")
        else:
            self.words.append(f"{name} = {value!r}")

    def _over_named(self, value: _PickleStandIn, name: str) -> None:
        array = _tensor(value, self._storage)
        if array is not None:
            self.tensors.append((name or "tensor", array))
            return
        self._seen.add(id(value))
        self.words.append(f"{name} is {value.name}")
        for part in (value.args, value.state, value.items):
            self.over(part, name)

    def _over_parts(self, value: dict[Any, Any] | list[Any] | tuple[Any, ...], name: str) -> None:
        if not isinstance(value, tuple):
            self._seen.add(id(value))
        if isinstance(value, dict):
            self.words.append(f"{name} has {sorted(map(str, value))}")
            for key, item in value.items():
                self.over(item, f"{name}.{_key(key)}".lstrip("."))
        else:
            self.words.append(f"{name} of {len(value)}")
            for place, item in enumerate(value):
                self.over(item, f"{name}[{place}]")


def _key(key: Any) -> str:
    return key.name if isinstance(key, _PickleStandIn) else str(key)


def _tensor(value: _PickleStandIn, storage: Any) -> Any:
    """Return the numbers of the tensor that `torch._utils._rebuild_tensor_v2` would construct."""
    import numpy as np

    if value.name == "torch._utils._rebuild_parameter":
        return _tensor(value.args[0], storage)
    if value.name != "torch._utils._rebuild_tensor_v2":
        return None
    place, offset, size, stride = value.args[:4]
    _, kind, key, _, _ = place.args
    flat = _numbers(storage(key), DTYPES[kind.name.rpartition(".")[2]])
    if not size:
        return flat[offset : offset + 1]
    if 0 in size:
        return flat[:0].reshape(size)
    strides = tuple(step * flat.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(flat[offset:], shape=size, strides=strides)


def _numbers(data: bytes, dtype: str) -> Any:
    import numpy as np

    if dtype == "bf16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, dtype)


# Other formats


def _safetensors(path: Path) -> Known | None:
    if path.suffix != ".safetensors":
        return None
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    rest = str(header.pop("__metadata__", ""))
    tensors = []
    for name, tensor in sorted(header.items()):
        first, end = tensor["data_offsets"]
        tensors.append((name, _numbers(data[first:end], SAFETENSORS[tensor["dtype"]]).reshape(tensor["shape"])))
    return rest, tensors


def _numpy(path: Path) -> Known | None:
    import numpy as np

    if path.suffix not in (".npy", ".npz"):
        return None
    loaded = np.load(path, allow_pickle=False)
    if path.suffix == ".npy":
        return "", [("array", loaded)]
    with loaded:
        return "", [(name, loaded[name]) for name in sorted(loaded.files)]


def _fingerprint(name: str, array: Any) -> Fingerprint:
    import numpy as np

    flat = np.ascontiguousarray(array).reshape(-1)
    digest = _digest(f"{array.dtype} {array.shape}".encode() + flat.tobytes())
    if flat.dtype.kind not in "fiub":
        return Fingerprint(name=name, digest=digest, norm=0.0, sketch=())
    numbers = np.nan_to_num(flat.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    place = np.arange(numbers.size, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    signed = numbers * (((place >> np.uint64(40)) & np.uint64(1)).astype(np.float64) * 2 - 1)
    padded = np.pad(signed, (0, -signed.size % BUCKETS))
    sketch = padded.reshape(-1, BUCKETS).sum(0)
    return Fingerprint(
        name=name, digest=digest, norm=math.sqrt(float(numbers @ numbers)), sketch=tuple(map(float, sketch))
    )


def _file_digest(path: Path) -> str:
    found = hashlib.blake2b(digest_size=8)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
