"""A process with all that it started: the memory of them all, and that none of them is left."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil

from hotlap.records import private

MIB = 1 << 20
PID = "pid.txt"


def family(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def without_compilers(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Workers that compile for torch are no part of the training: they idle once all is compiled."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if not any("compile_worker" in word for word in process.cmdline()):
                found.append(process)
    return found


def memory_mb(processes: list[psutil.Process]) -> float:
    """What they take together: memory that several share, as workers do with the one that forked them, counts once."""
    return sum(_proportional(process) for process in processes) / MIB


def _proportional(process: psutil.Process) -> int:
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def end(pid: int, also: list[psutil.Process]) -> None:
    """The whole group, and whoever of the family left it, at once."""
    everyone = {process.pid: process for process in [*also, *family(pid)]}
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for process in everyone.values():
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs([one for one in everyone.values() if one.pid != pid], timeout=2.0)


def remember(pid: int, folder: Path) -> None:
    with suppress(psutil.Error):
        private.write_text(folder / PID, f"{pid} {psutil.Process(pid).create_time()}\n")


def alive(folder: Path) -> int | None:
    """The process that is remembered there, if it still runs; its number may be another's by now."""
    with suppress(OSError, ValueError, psutil.Error):
        pid, born = (folder / PID).read_text(encoding="utf-8").split()
        process = psutil.Process(int(pid))
        if abs(process.create_time() - float(born)) < 1.0 and process.status() != psutil.STATUS_ZOMBIE:
            return int(pid)
    return None


def end_leftover(folder: Path) -> None:
    """A process that outlived the hotlap that started it."""
    pid = alive(folder)
    if pid is not None:
        end(pid, [])
