"""Errors of several processes: each is printed once, and where one process fails all of them end."""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from collections.abc import Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch.distributed as torch_distributed

from hotlap.engine.errors import OtherProcessFailed

SECONDS = 5  # at most, to ask whether an error was printed already
LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "recv, got 0 bytes",
)


@contextlib.contextmanager
def naming_lost_processes() -> Iterator[None]:
    """Turn torch's error about a connection into one that says what happened."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not isinstance(error, torch_distributed.DistError) and not any(words in text for words in LOST):
            raise
        why = next((words for words in LOST if words in text), text.strip().splitlines()[0])
        raise OtherProcessFailed(
            "another process of this training has ended, or took no part: all must call fit and evaluate, with the "
            f"same data and settings ({why})"
        ) from error


def print_errors_once() -> None:
    """Let an error that several processes end with be printed by the first of them to get there."""
    usual = sys.excepthook
    if getattr(usual, "prints_once", False):
        return

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        is_news = _is_news(f"{kind.__name__} {error}")
        if isinstance(error, OtherProcessFailed):
            if not error.is_told and _is_news("any"):
                sys.stderr.write(f"{error}\n")
            return
        _is_news("any")
        if is_news:
            usual(kind, error, traceback)

    hook.prints_once = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _is_news(what: str) -> bool:
    """Return whether no process has asked this before; where they cannot be asked, it is."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        store = _store()
        return store is None or int(store.add(f"hotlap/errors/{attempt}/{zlib.crc32(what.encode())}", 1)) == 1
    except Exception:  # noqa: BLE001 - whatever has become of the launcher, the error must be printed
        return True


def _store() -> Any:
    """Return the launcher's store, which outlives the processes."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    options: dict[str, Any] = {"is_master": False, "wait_for_workers": False, "timeout": timedelta(seconds=SECONDS)}
    return torch_distributed.TCPStore(host, port, **options)  # type: ignore[attr-defined]
