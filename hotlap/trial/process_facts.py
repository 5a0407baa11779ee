"""The side effects of a process by its last step: signal handlers, open files, and processes it has started."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

from hotlap.patch.forks import without_torchs_own

LEAKED = 8  # additional open files over the last half of the steps: some are opened now and then
FEWEST = 8  # counts of open files needed to judge


def process_facts(
    optimizers: Iterable[Any], open_files: Sequence[int], threads: Sequence[int] = ()
) -> Iterator[tuple[str, str]]:
    """Yield facts by name. `open_files` and `threads` hold how many there were at regular intervals."""
    for number in sorted(signal.valid_signals()):
        handler = _handler(number)
        if handler is not None:
            yield f"handler of {signal.Signals(number).name if number in set(signal.Signals) else number}", handler
    if len(open_files) >= FEWEST:
        half = open_files[len(open_files) // 2 :]
        yield "number of open files", "growing" if half[-1] - half[0] > LEAKED else "not growing"
    if len(threads) >= FEWEST:
        yield "number of threads", "growing" if _keeps_growing(threads) else "not growing"
    if sys.platform == "linux":
        yield "number of child processes other than workers", str(len(_started() - _workers()))
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    flags = [weight.requires_grad for group in groups for weight in group["params"]]
    yield "set of trained weights", f"{sum(flags)} of {len(flags)} ({crc32(bytes(flags)):08x})"


def open_files() -> int:
    """Return the number of open files of this process; 0 if the system does not report it."""
    with suppress(OSError):
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    return 0


def threads() -> int:
    """Return the number of Python's threads."""
    return threading.active_count()


def _keeps_growing(counts: Sequence[int]) -> bool:
    """Whether a count is higher at the end of each quarter than at the end of the quarter before."""
    levels = [counts[(len(counts) - 1) * quarter // 4] for quarter in range(5)]
    return all(after > before for before, after in pairwise(levels))


def _handler(number: int) -> str | None:
    """Return the name of the handler of a signal; None for the system's default."""
    try:
        handler = without_torchs_own(signal.getsignal(number))
    except (OSError, ValueError):
        return None
    if handler in (None, signal.SIG_DFL):
        return None
    if handler == signal.SIG_IGN:
        return "ignored"
    return f"{getattr(handler, '__module__', '')}.{getattr(handler, '__qualname__', type(handler).__name__)}"


def _started() -> set[int]:
    """Return the child processes, without torch's compile workers, which idle once everything is compiled."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError, ValueError):
            found |= set(map(int, (task / "children").read_text(encoding="ascii").split()))
    return {process for process in found if b"compile_worker" not in _command(process)}


def _command(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def _workers() -> set[int]:
    """Return the processes of loaders and pools, with the helpers that multiprocessing runs for them."""
    found = {child.pid for child in multiprocessing.active_children() if child.pid is not None}
    for name, attribute, place in (
        ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
        ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
    ):
        helper = getattr(getattr(sys.modules.get(name), attribute, None), place, None)
        found |= {helper} if isinstance(helper, int) else set()
    return found
