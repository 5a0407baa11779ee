"""A process tree: its memory, and how it is ended so that no process is left."""

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
    """Return the processes without torch's compile workers, which idle once everything is compiled."""
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if not any("compile_worker" in word for word in process.cmdline()):
                found.append(process)
    return found


def memory_mb(processes: list[psutil.Process]) -> float:
    """Return their memory in MiB; memory that several share, such as workers with their parent, counts once."""
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
    """Kill the whole group, and the members of the tree that left it."""
    everyone = {process.pid: process for process in [*also, *family(pid)]}
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for process in everyone.values():
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs([process for process in everyone.values() if process.pid != pid], timeout=2.0)


def remember(pid: int, folder: Path) -> None:
    with suppress(psutil.Error):
        private.write_text(folder / PID, f"{pid} {psutil.Process(pid).create_time()}\n")


def alive(folder: Path) -> int | None:
    """Return the pid recorded in the folder if that process still runs, and the pid is not another's by now."""
    with suppress(OSError, ValueError, psutil.Error):
        pid, born = (folder / PID).read_text(encoding="utf-8").split()
        process = psutil.Process(int(pid))
        if abs(process.create_time() - float(born)) < 1.0 and process.status() != psutil.STATUS_ZOMBIE:
            return int(pid)
    return None


def end_leftover(folder: Path) -> None:
    """End a process that outlived the hotlap that started it."""
    pid = alive(folder)
    if pid is not None:
        end(pid, [])
