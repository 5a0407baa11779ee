"""Run by Python when a process of a claim starts, if this folder is on its path.

It counts the cores that it was given, not those that others have beside it, and if it used a GPU it prints the most
that torch had reserved there. If processes take turns (benchmarks/claims/claims_rounds.py), it waits after each epoch.
"""

from __future__ import annotations

import atexit
import os
import sys

ADDRESS = "HOTLAP_CLAIMS_TURNS"  # of the Unix socket of who gives the turns


def _tell() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        print(f"device_mb {torch.cuda.max_memory_reserved() / 2**20:.6g}", flush=True)


def _take_turns(address: str) -> None:
    """After each epoch line that the main thread prints, wait for the signal to continue, or until the line is cut."""
    import contextlib
    import socket
    import threading

    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(address)
    except OSError as error:
        sys.exit(f"nobody gives turns at {address} ({error})")
    write, own_process, begun = sys.stdout.write, os.getpid(), ""

    def write_and_wait(text: str) -> int:
        nonlocal begun
        written = write(text)
        if os.getpid() != own_process or threading.current_thread() is not threading.main_thread():
            return written  # a forked worker has this function too, and must not wait
        *ended, begun = (begun + text).split("\n")
        if any(line.startswith("epoch ") and " seconds " in line for line in ended):
            sys.stdout.flush()
            with contextlib.suppress(OSError):  # nobody is there any more: go on
                line.sendall(b".")
                line.recv(1)
        return written

    sys.stdout.write = write_and_wait


if hasattr(os, "sched_getaffinity"):
    os.cpu_count = lambda: len(os.sched_getaffinity(0))
atexit.register(_tell)
_address = os.environ.pop(ADDRESS, None)  # not for the processes that this one starts
if _address:
    _take_turns(_address)
