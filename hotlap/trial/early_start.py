"""Sets up each process of a trial, before the program's first line."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hotlap.patch.ledger import Ledger
from hotlap.records.session import Session
from hotlap.trial.diversion import divert, note_ours, shadow_of
from hotlap.trial.foreign import Foreign
from hotlap.trial.order import read_order
from hotlap.trial.seeds import Seeds

_ledger = Ledger()
PR_SET_PDEATHSIG = 1


def enter(session: Session) -> None:
    """Divert writes, shift seeds, and end with the process that started this one."""
    order = read_order(session)
    end_with_parent()
    folder = Path(session.folder)
    shadow = shadow_of(Path(order.scratch), Path.cwd(), folder)
    divert(shadow, _ledger)
    note_ours(shadow)
    Foreign(folder, _ledger).install()
    Seeds(order.seed_shift, _ledger).install()


def end_with_parent() -> None:
    """Leave nothing running when hotlap is killed. Linux only; elsewhere --resume ends what is left."""
    if sys.platform != "linux":
        return
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
