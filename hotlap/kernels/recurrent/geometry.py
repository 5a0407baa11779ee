"""Ways of walking a layer: their names, and how their work is laid out on a multiprocessor.

`cuda:fma:r2:c1` walks two batch rows with plain FMAs in one thread block; `cuda:mma:r16:c4` sixteen with TF32 tensor
cores in a cluster of four; `cuda:tile:r4:c1` four with tensor cores that leave all gates of a unit in one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

REGISTERS, REGISTERS_A_THREAD = 65536, 192
OTHER_REGISTERS = 64  # for sums, reads ahead and addresses
THREADS_AT_MOST = 512
SHARED_AT_MOST = 227 * 1024
AHEAD = 4
SUMS_AT_MOST = 16  # of the recurrent weights' gradient, in registers of one thread
WALKED_AT_MOST = 16  # features that a walk multiplies itself, with weights or sums of weights in registers
TILE_REGISTERS, WITHOUT_FEATURES = 280, 320  # by the estimate below; more would spill in every step
WALKED_EASILY, REGISTERS_WITH_MANY = 8, 176  # more features only in small layers, whose threads hold little else


@dataclass(frozen=True)
class Variant:
    product: str  # fma, mma or tile
    rows: int = 1  # batch rows that walk together
    cluster: int = 1
    blocks: int = 1  # thread blocks that share a multiprocessor
    finer: int = 1  # at least so many times the threads, each with a smaller part of the reduction (fma, tile)

    def __str__(self) -> str:
        finer = f":k{self.finer}" if self.finer > 1 else ""
        return f"cuda:{self.product}:r{self.rows}:c{self.cluster}:b{self.blocks}{finer}"


@cache
def parse(text: str) -> Variant:
    """Return the variant of this name; raise ValueError if there is none."""
    engine, *rest = text.split(":")
    is_known = engine == "cuda" and bool(rest) and rest[0] in ("fma", "mma", "tile")
    if not is_known or not all(setting[1:].isdecimal() for setting in rest[1:]):
        raise ValueError(f"{text!r} is not a variant; use a name such as cuda:fma:r2:c1:b1")
    numbers = {setting[0]: int(setting[1:]) for setting in rest[1:]}
    rows, cluster, blocks, finer = (numbers.get(setting, 1) for setting in "rcbk")
    return Variant(rest[0], rows, cluster, blocks, finer)


@dataclass(frozen=True)
class Layout:
    """One CUDA kernel: what kernels.cu or tiles.cu is compiled with."""

    lstm: bool
    backward: bool
    exact: bool
    hidden: int
    padded: int
    variant: Variant
    split: int
    tiles: int
    threads: int
    features: int = 0  # that the walk multiplies itself; 0: large products outside do
    summed: bool = False  # backward: the walk sums the gradient of the recurrent weights itself

    @property
    def shared_bytes(self) -> int:
        if self.variant.product == "tile":
            return 4 * self._tile_floats()
        gates = 4 if self.lstm else 3
        units = self.padded // self.variant.cluster
        depth, columns = (gates * self.padded, units) if self.backward else (self.padded, gates * units)
        buffers = 2 if self.variant.cluster > 1 else 1
        more = 2 * self.features + self.summed * self.padded
        return 4 * self.variant.rows * (buffers * (depth + 4) + self.split * (columns + 4) + more)

    def _tile_floats(self) -> int:
        """Count two copies of the state, with rows apart as tiles.cu says, and what warps exchange."""
        rows, depth = self.variant.rows, 4 * self.padded if self.backward else self.padded
        apart = depth + ((24 if depth % 32 else 8) if rows == 4 else (0 if depth % 32 else 16))
        exchanged = self.padded // self.variant.cluster * rows if self.backward and self.split > 1 else 0
        return 2 * (rows * apart + (0 if rows == 4 else 4 * rows)) + exchanged

    @property
    def defines(self) -> tuple[str, ...]:
        values = {
            "LSTM": self.lstm, "BACKWARD": self.backward, "MMA": self.variant.product == "mma", "EXACT": self.exact,
            "HIDDEN": self.hidden, "PADDED": self.padded, "CLUSTER": self.variant.cluster, "ROWS": self.variant.rows,
            "SPLIT": self.split, "TILES": self.tiles, "THREADS": self.threads, "BLOCKS": self.variant.blocks,
            "AHEAD": AHEAD, "FEATURES": self.features, "SUMMED": self.summed,
        }  # fmt: skip
        return tuple(f"-D{name}={int(value)}" for name, value in values.items())

    def clusters(self, batch: int) -> int:
        return -(-batch // self.variant.rows)


@cache
def layout(kind: str, hidden: int, variant: Variant, backward: bool, exact: bool, features: int = 0) -> Layout | None:
    """Return the layout of this variant's kernel for so many `features`; None if it does not fit on the chip."""
    gates = 4 if kind == "lstm" else 3
    step = (4 if variant.product == "fma" else 16) * variant.cluster
    padded = -(-hidden // step) * step
    units = padded // variant.cluster
    depth, columns = (gates * padded, units) if backward else (padded, gates * units)
    if variant.product == "tile":
        found = None if exact else _in_tiles(gates, padded, variant)
    else:
        found = (_tiled if variant.product == "mma" else _columns)(depth, columns, variant)
    if found is None or (variant.product == "mma" and variant.rows % 8):
        return None
    split, tiles, threads = found
    summed = backward and _sums_at_most(gates, padded, threads, variant)
    made = Layout(kind == "lstm", backward, exact, hidden, padded, variant, split, tiles, threads, summed=summed)
    walking = replace(made, features=features)
    if _walks(walking):
        return walking
    return made if _fits(made) else None


def _sums_at_most(gates: int, padded: int, threads: int, variant: Variant) -> bool:
    """Return whether each thread has few enough sums."""
    slots = threads // (gates * padded)
    alone = variant.product == "fma" and variant.cluster == 1
    return alone and slots > 0 and 4 * -(-padded // 4 // slots) <= SUMS_AT_MOST


def _fits(candidate: Layout) -> bool:
    blocks = candidate.variant.blocks
    if candidate.variant.product == "tile" and _tile_registers(replace(candidate, features=0)) > WITHOUT_FEATURES:
        return False
    return candidate.shared_bytes * blocks <= SHARED_AT_MOST and candidate.threads * blocks <= 1024


def _walks(candidate: Layout) -> bool:
    """Return whether the features have room beside everything else."""
    most = TILE_REGISTERS if candidate.variant.product == "tile" else _registers_at_most(candidate)
    if candidate.features > WALKED_EASILY and candidate.variant.product != "tile":
        most = min(most, REGISTERS_WITH_MANY)
    return 0 < candidate.features <= WALKED_AT_MOST and _fits(candidate) and _registers(candidate) <= most


def _registers_at_most(candidate: Layout) -> int:
    """Return how many of the compiler's registers to plan with, since the estimate may be too low."""
    return int(0.87 * min(255, REGISTERS // (candidate.threads * candidate.variant.blocks)))


def _registers(candidate: Layout) -> int:
    """Estimate the registers that a thread needs."""
    gates, units = 4 if candidate.lstm else 3, candidate.padded // candidate.variant.cluster
    if candidate.variant.product == "tile":
        return _tile_registers(candidate)
    depth = (gates * candidate.padded if candidate.backward else candidate.padded) // candidate.split
    weights = candidate.tiles * depth // 8 * 4 if candidate.variant.product == "mma" else depth
    elements = -(-units * candidate.variant.rows // candidate.threads)
    sets = 1 if candidate.threads % units == 0 else elements
    sums = gates * candidate.padded * candidate.padded // candidate.threads if candidate.summed else 0
    return 48 + weights + sums + 12 * elements + sets * 4 * (1 + candidate.features)


def room(threads: int, blocks: int) -> int:
    """Return the registers of a thread that weights may fill."""
    return min(REGISTERS_A_THREAD, REGISTERS // (threads * blocks)) - OTHER_REGISTERS


def _columns(depth: int, columns: int, variant: Variant) -> tuple[int, int, int] | None:
    """Lay out FMA: a thread per column and part of the reduction; if possible two or more warps, at most 64 weights."""
    fitting = []
    for split in range(1, depth // 4 + 1):
        threads = -(-columns * split // 32) * 32
        if depth % (4 * split) == 0 and threads <= THREADS_AT_MOST and depth // split <= room(threads, variant.blocks):
            fitting.append(split)
    easy = [parts for parts in fitting if depth // parts <= 64 and columns * parts >= 64]
    if not fitting:
        return None
    wanted = (min(easy) if easy else max(fitting)) * variant.finer
    finer = [parts for parts in fitting if parts >= wanted]  # a reduction over 48 has 12 parts, but not 8
    return (finer[0], 1, -(-columns * finer[0] // 32) * 32) if finer else None


def _tiled(depth: int, columns: int, variant: Variant) -> tuple[int, int, int] | None:
    """Lay out tensor cores: eight warps if possible, each with one or two tiles of 16 columns."""
    found = []
    for tiles in (1, 2):
        for split in range(1, depth // 8 + 1):
            warps = columns // 16 // tiles * split
            if columns // 16 % tiles or depth // 8 % split or warps * 32 > THREADS_AT_MOST:
                continue
            if tiles * depth // 8 // split * 4 <= room(warps * 32, variant.blocks):
                found.append((abs(warps - 8), split, tiles, warps))
    if not found or variant.finer > 1:
        return None
    _, split, tiles, warps = min(found)
    return split, tiles, warps * 32


def _in_tiles(gates: int, padded: int, variant: Variant) -> tuple[int, int, int] | None:
    """Lay out tensor cores with a unit's gates in one thread: one warp for 16 units, or two with half the weights."""
    if variant.rows != 4 and variant.rows % 8:
        return None
    found = []
    for split in (1, 2):
        threads = padded // variant.cluster // 16 * 32 * split
        if threads <= THREADS_AT_MOST and gates * padded // 2 // split <= room(threads, variant.blocks):
            found.append((split, 1, threads))
    return found[variant.finer - 1] if 0 < variant.finer <= len(found) else None


def _tile_registers(candidate: Layout) -> int:
    """Estimate registers as fitted to the compiler's reports for sm_90: up to 280 by this it spills a few at most."""
    gates, split = 4 if candidate.lstm else 3, candidate.split
    elements = 2 // split * max(1, candidate.variant.rows // 4)
    steps, weights = -(-candidate.features // 8), gates * candidate.padded // 2 // split
    if candidate.backward:
        return 50 + weights + 32 * elements + (4 * gates + 18) * steps
    return 56 + weights + 16 * elements + 32 // split * steps
