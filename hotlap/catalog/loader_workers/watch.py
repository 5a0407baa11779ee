"""A separate program, started by the reaper: kills the processes listed on its standard input once that closes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path


def since(pid: int) -> str | None:
    """Return the start time of a process, which tells it from a later one with its pid; None if it is gone."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] == "Z" else fields[19]
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return found.stdout.strip() or None


def main(grace: float) -> None:
    known: dict[int, str | None] = {}
    for line in sys.stdin:
        if line.strip() == "forget":
            return
        if line.strip().isdecimal():
            known[int(line)] = since(int(line))
    until = time.monotonic() + grace
    while left := [pid for pid, start in known.items() if start is not None and since(pid) == start]:
        if time.monotonic() >= until:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.2)


if __name__ == "__main__":
    if os.fork() == 0:
        main(float(sys.argv[1]))
