"""Digests of the program's own state at the end of a trial, beyond models and optimizers."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from mmap import mmap
from typing import Any

from hotlap.loading.generators import access
from hotlap.records.traces import Fingerprint
from hotlap.trial.belongings import Belongings, Roots, closed_functions
from hotlap.trial.fingerprints import Fingerprints

MOST_NUMBERS = 1 << 20  # read of the tensors or arrays of one container; of larger ones, evenly spaced numbers
MOST_IN_ALL = 1 << 22
LONGEST = 400  # characters of a scheduler's attribute; a longer one is recorded as a digest
DEEPEST = 4
ON_DEVICE = " (cuda)"  # ends the name of a generator of a device
LEARNING_RATES = frozenset(("optimizer", "_last_lr"))  # of a scheduler: compared as state of the optimizer


class Holdings:
    """What the program holds; a summary is made once, and nothing is drawn from any random stream."""

    def __init__(self, torch: Any, roots: Roots, known: Iterable[int]) -> None:
        """Walk from the roots; `known` holds the ids of tensors that are compared elsewhere."""
        self._torch, self._prints = torch, Fingerprints(torch)
        self._found = Belongings(torch, known).walk(roots.all())
        self._room = MOST_IN_ALL
        self._cut = [*self._found.cut, *(f"variables of {name}" for name in closed_functions())]
        self.held: list[Fingerprint] = []
        self.contents: list[tuple[str, str]] = []
        self._read_tensors()
        self._read_arrays()

    @property
    def unread(self) -> list[str]:
        return [*self._prints.unreadable, *self._cut]

    def own_streams(self) -> Iterator[tuple[str, str]]:
        """Yield a digest of the state of each generator, except for the global ones of the process."""
        shared = {id(self._torch.default_generator), *map(id, self._torch.cuda.default_generators)}
        for name, generator in self._found.generators:
            found = access(self._torch, generator)
            if found is not None and id(generator) not in shared:
                with suppress(Exception):  # a class of the program's own may raise anything
                    device = getattr(getattr(generator, "device", None), "type", "")
                    yield name + (ON_DEVICE if device == "cuda" else ""), _digest(_canonical(found[1]()))

    def schedulers(self) -> Iterator[tuple[str, str]]:
        """Yield the plain attributes of each scheduler as text."""
        for name, scheduler in self._found.schedulers:
            for attribute, value in sorted(vars(scheduler).items()):
                if attribute not in LEARNING_RATES and (text := _plain(value)) is not None:
                    yield f"{name}.{attribute}", text if len(text) <= LONGEST else _digest(text.encode())

    def _read_tensors(self) -> None:
        for name, tensors in self._found.tensors.items():
            floating = [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]
            others = [tensor for tensor in tensors if not (tensor.is_floating_point() or tensor.is_complex())]
            if floating and (found := self._of_tensors(name, floating)) is not None:
                self.held.append(found)
            if others and (found := self._of_tensors(name, others)) is not None:
                self.contents.append((name, found.digest))

    def _of_tensors(self, name: str, tensors: Sequence[Any]) -> Fingerprint | None:
        with suppress(Exception):  # some kinds of tensor cannot be read in part
            most = self._most(name, [tensor.numel() for tensor in tensors])
            if most:
                return self._prints.together(name, tensors, most)
        if name not in self._cut:
            self._cut.append(name)
        return None

    def _read_arrays(self) -> None:
        for name, arrays in self._found.arrays.items():
            with suppress(Exception):  # an array of the program's own class may raise anything
                most = self._most(name, [array.size for array in arrays])
                if most:
                    found = b"".join(_of_array(array, most) for array in arrays)
                    self.contents.append((f"{name} (array)", _digest(found)))

    def _most(self, name: str, sizes: Sequence[int]) -> int:
        """Return how many numbers to read of each tensor of a container; 0 if too many have been read."""
        most = max(sizes) if sum(sizes) <= MOST_NUMBERS else max(1, MOST_NUMBERS // len(sizes))
        needed = sum(min(size, most) for size in sizes)
        if needed > self._room:
            self._cut.append(name)
            return 0
        self._room -= needed
        return max(1, most)


def _of_array(array: Any, most: int) -> bytes:
    """Return the dtype, shape and numbers of an array; of a large one only a sample, and of a file the first."""
    head = f"{array.dtype.str} {array.shape} ".encode()
    if array.dtype.hasobject:
        return head
    if array.size > most:
        array = array.flat[:most] if _is_mapped(array) else array.flat[:: -(-array.size // most)]
    return head + bytes(array.tobytes())


def _is_mapped(array: Any) -> bool:
    while array is not None and not isinstance(array, mmap):
        array = getattr(array, "base", None)
    return array is not None


def _canonical(state: Any) -> bytes:
    """Return the state of a generator as bytes that depend on its numbers alone."""
    if isinstance(state, Mapping):
        return b"{" + b",".join(str(key).encode() + b":" + _canonical(part) for key, part in state.items()) + b"}"
    if isinstance(state, list | tuple):
        return b"(" + b",".join(map(_canonical, state)) + b")"
    if hasattr(state, "tolist"):
        return repr(state.tolist()).encode()
    return repr(state).encode()


def _plain(value: Any, deepest: int = DEEPEST) -> str | None:
    """Return a value made of numbers, words and containers as text; None if it holds anything else."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if deepest and isinstance(value, Mapping):
        parts = [(_plain(key, 0), _plain(part, deepest - 1)) for key, part in value.items()]
        return None if any(None in pair for pair in parts) else _joined([f"{key}: {part}" for key, part in parts], "{}")
    if deepest and isinstance(value, list | tuple | deque):
        texts = [_plain(part, deepest - 1) for part in value]
        return None if None in texts else _joined(texts, "[]")
    if deepest and isinstance(value, set | frozenset):
        texts = [_plain(part, 0) for part in value]
        return None if None in texts else _joined(sorted(map(str, texts)), "{}")
    return None


def _joined(texts: Sequence[str | None], brackets: str) -> str:
    return f"{brackets[0]}{', '.join(map(str, texts))}{brackets[1]}"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()
