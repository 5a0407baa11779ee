"""What the process holds of the host's and the device's memory, and what a collection changed."""

from __future__ import annotations

from typing import Any, NamedTuple

from hotlap.machine import held_bytes

MUCH = 64 << 20  # bytes
SHARE = 0.05  # of what was held: growth below it is not worth a collection


class MemoryUse(NamedTuple):
    host: int
    device: int


class Memory:
    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._base = MemoryUse(0, 0)

    def held(self) -> MemoryUse:
        """Some 20 µs for the host; the device is not waited for."""
        device = self._cuda.memory_allocated() if self._cuda.is_initialized() else 0
        return MemoryUse(held_bytes().resident, device)

    def has_grown(self) -> bool:
        return self._is_more(self.held())

    def collected(self, before: MemoryUse, found: int) -> bool:
        """Told after each collection; `found` is what it returned. Whether it was of use.

        Allocators give memory back late: where it had grown, any garbage counts as the cause.
        """
        grew = self._is_more(before)
        self._base = self.held()
        return (grew and found > 0) or any(was - now > MUCH for was, now in zip(before, self._base, strict=True))

    def _is_more(self, held: MemoryUse) -> bool:
        """Than after the last collection."""
        return any(now - base > max(MUCH, SHARE * base) for now, base in zip(held, self._base, strict=True))
