"""Measures the memory that the process holds on host and device, and what a collection changed."""

from __future__ import annotations

from typing import Any, NamedTuple

from hotlap.machine import held_bytes

MUCH = 64 << 20  # bytes
SHARE = 0.05  # of the memory held: less growth is not worth a collection


class MemoryUse(NamedTuple):
    host: int
    device: int


class Memory:
    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._base = MemoryUse(0, 0)

    def held(self) -> MemoryUse:
        """Return the memory held; takes about 20 µs and does not wait for the device."""
        device = self._cuda.memory_allocated() if self._cuda.is_initialized() else 0
        return MemoryUse(held_bytes().resident, device)

    def has_grown(self) -> bool:
        return self._is_more(self.held())

    def collected(self, before: MemoryUse, found: int) -> bool:
        """Return whether a collection was useful; must be called after each one, with what it returned as `found`.

        Allocators return memory late: if memory had grown, any garbage counts as the cause.
        """
        grew = self._is_more(before)
        self._base = self.held()
        return (grew and found > 0) or any(was - now > MUCH for was, now in zip(before, self._base, strict=True))

    def _is_more(self, held: MemoryUse) -> bool:
        """Return whether noticeably more memory is held than after the last collection."""
        return any(now - base > max(MUCH, SHARE * base) for now, base in zip(held, self._base, strict=True))
