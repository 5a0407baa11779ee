"""The kernels of the .cu files: their arguments, and how they are compiled at run time for a layer."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hotlap.kernels.cuda import nvrtc
from hotlap.kernels.cuda.driver import DEVICE, Kernel
from hotlap.kernels.recurrent.geometry import Layout, Variant, layout

HERE = Path(__file__).parent
SOURCES = (
    "recurrence.cu", "kernels.cu", "forward.cu", "backward.cu",
    "tiles.cu", "tiles_forward.cu", "tiles_backward.cu", "sums.cu",
)  # fmt: skip
NAMES = {False: "rnn_forward", True: "rnn_backward"}
# `struct Walk` and `struct Sums`, in their order
Fields = tuple[list[str], list[str], list[str]]  # pointers, long longs, ints
WALK: Fields = (
    "x weight_ih weight bias_ih bias_hh h0 c0 y kept h_n c_n dy dh_n dc_n dgates dh0 dc0 parts of_states".split(),
    "x_step x_row y_row dy_step dy_row".split(),
    "steps batch reverse dgates_row".split(),
)
SUMS: Fields = (
    "of_walk of_states of_inputs weight_ih weight_hh bias_ih bias_hh".split(),
    [],
    "walk_parts state_parts input_parts walked hidden features lstm summed".split(),
)


def packer(pointers: list[str], strides: list[str], numbers: list[str]) -> struct.Struct:
    return struct.Struct(f"{len(pointers)}Q{len(strides)}q{len(numbers)}i")


pack_walk, pack_sums = packer(*WALK).pack, packer(*SUMS).pack


@dataclass(frozen=True)
class Adder:
    """The layout of sums.cu, the same for all shapes."""

    threads: int = 256

    @property
    def shared_bytes(self) -> int:
        return 4 * self.threads

    @property
    def defines(self) -> tuple[str, ...]:
        return (f"-DTHREADS={self.threads}", "-DCLUSTER=1", "-DBLOCKS=1", "-DEXACT=0", "-DSUMS=1")


Laid = Layout | Adder


@cache
def kernel(found: Laid, device: int) -> Any:
    """Compile and load a kernel, once per process and device."""
    name = NAMES[found.backward] if isinstance(found, Layout) else "rnn_sums"
    return Kernel(binary(found, device), name, found.shared_bytes, device)


def binary(found: Laid, device: int) -> bytes:
    return nvrtc.compiled(source(found), found.defines, nvrtc.architecture(device))


@cache
def source(found: Laid | None = None) -> str:
    """Return the source that this kernel is compiled from; for None, all sources."""
    names = SOURCES if found is None else files(found)
    return "".join(path.read_text(encoding="utf-8") for path in (DEVICE, *(HERE / name for name in names)))


def files(found: Laid) -> tuple[str, ...]:
    """Return the names of the files compiled after DEVICE."""
    if isinstance(found, Adder):
        return ("sums.cu",)
    way = "backward.cu" if found.backward else "forward.cu"
    if found.variant.product == "tile":
        return "recurrence.cu", "tiles.cu", f"tiles_{way}"
    return "recurrence.cu", "kernels.cu", way


@dataclass(frozen=True)
class Sizes:
    """The properties of a layer that decide which kernels it needs."""

    kind: str
    hidden: int
    exact: bool
    features: int
    layers: int = 1
    directions: int = 1

    def widths(self) -> tuple[int, ...]:
        """Return the number of features of the first layer, and of those on top of it."""
        return (self.features,) if self.layers == 1 else (self.features, self.hidden * self.directions)

    def kernels(self, variant: Variant) -> Iterator[Laid]:
        """Yield all kernels that the variant may launch; none if one of them does not fit."""
        found = [
            layout(self.kind, self.hidden, variant, backward, self.exact, width)
            for width in self.widths()
            for backward in (False, True)
        ]
        fitting = [kernel_layout for kernel_layout in found if kernel_layout is not None]
        if len(fitting) == len(found):
            yield from fitting
            yield Adder()


def is_ready(variant: Variant, sizes: Sizes, device: int) -> bool:
    """Return whether the variant's kernels are loaded, so that a graph can be captured with them."""
    found = list(sizes.kernels(variant))
    return bool(found) and all((kernel_layout, device) in _loaded for kernel_layout in found)


_loaded: set[tuple[Laid, int]] = set()


def load(variant: Variant, sizes: Sizes, device: int) -> None:
    for kernel_layout in sizes.kernels(variant):
        kernel(kernel_layout, device)
        _loaded.add((kernel_layout, device))
