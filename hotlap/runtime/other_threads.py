"""Whether the training is alone with the random numbers of the process.

A state that is put back takes back what other threads drew meanwhile. So nothing of ours puts one back beside them.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures.thread import _worker
from pathlib import Path
from types import FrameType

from hotlap.patch.hidden_frames import is_ours

# Threads that libraries keep, none of which draws from the streams of the process: where their work begins.
QUIET = (
    "/tqdm/_monitor.py",
    "/torch/utils/data/_utils/pin_memory.py",
    "/torch/_inductor/",
    "/multiprocessing/",
    "/concurrent/futures/process.py",
    "/tensorboard/",
    "/tensorboardX/",
    "/wandb/",
    "/ipykernel/",
    "/IPython/",
    "/zmq/",
    "/tornado/",
    "/execnet/",
    "/debugpy/",
    "/pydevd",
)


def why_not_alone() -> str | None:
    for thread, frame in sys._current_frames().items():
        if thread != threading.get_ident() and (place := _work_of(frame)) is not None:
            return f"another thread of the program is running ({place}), whose random numbers must not be taken back"
    return None


def _work_of(frame: FrameType | None) -> str | None:
    """The line where the work of a thread begins; None where it is none of the program's."""
    if frame is not None and frame.f_code is _worker.__code__:
        return None  # of a pool, waiting for somebody to give it work
    begins = None
    while frame is not None:
        if frame.f_code.co_filename != threading.__file__:
            begins = frame
        frame = frame.f_back
    if begins is None or is_ours(begins.f_code) or any(path in begins.f_code.co_filename for path in QUIET):
        return None
    return f"{Path(begins.f_code.co_filename).name}:{begins.f_code.co_firstlineno}"
