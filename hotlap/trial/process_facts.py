"""What a process is like by its last step, beside what it computes: signals, open files, processes it has started."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from hotlap.patch.forks import without_torchs_own

LEAKED = 8  # more open files over the last half of the steps: some are opened now and then
FEWEST = 8  # times that they were counted


def process_facts(optimizers: Iterable[Any], open_files: Sequence[int]) -> Iterator[tuple[str, str]]:
    """`open_files`: how many there were, at even distances."""
    for one in sorted(signal.valid_signals()):
        handler = _handler(one)
        if handler is not None:
            yield f"handler of {signal.Signals(one).name if one in set(signal.Signals) else one}", handler
    if len(open_files) >= FEWEST:
        half = open_files[len(open_files) // 2 :]
        yield "open files", "more and more" if half[-1] - half[0] > LEAKED else "no more and more"
    if sys.platform == "linux":
        yield "processes it has started, besides workers", str(len(_started() - _workers()))
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    flags = [one.requires_grad for group in groups for one in group["params"]]
    yield "which weights are trained", f"{sum(flags)} of {len(flags)} ({crc32(bytes(flags)):08x})"


def open_files() -> int:
    """Of this process; 0 where the system does not tell."""
    with suppress(OSError):
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    return 0


def _handler(number: int) -> str | None:
    """None: what the system does by itself."""
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
    """Those that compile for torch idle once all is compiled, and are no part of the training."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError, ValueError):
            found |= set(map(int, (task / "children").read_text(encoding="ascii").split()))
    return {one for one in found if b"compile_worker" not in _command(one)}


def _command(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def _workers() -> set[int]:
    """Of loaders and pools, with the helpers that multiprocessing keeps for them."""
    found = {one.pid for one in multiprocessing.active_children() if one.pid is not None}
    for name, attribute, place in (
        ("multiprocessing.resource_tracker", "_resource_tracker", "_pid"),
        ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid"),
    ):
        helper = getattr(getattr(sys.modules.get(name), attribute, None), place, None)
        found |= {helper} if isinstance(helper, int) else set()
    return found
