"""Whether the training is the only user of the process's random numbers.

Restoring a random state also rewinds what other threads drew meanwhile, so we restore none while others run.
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures.thread import _worker
from pathlib import Path
from types import FrameType

from hotlap.patch.hidden_frames import is_ours

# Files in which threads of libraries begin that do not draw from the random streams of the process.
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
            return f"another thread of the program is running ({place}), so random numbers must not be rewound"
    return None


def _work_of(frame: FrameType | None) -> str | None:
    """Return the line where a thread's work begins, or None if it is not the program's."""
    if frame is not None and frame.f_code is _worker.__code__:
        return None  # an idle thread of a pool
    begins = None
    while frame is not None:
        if frame.f_code.co_filename != threading.__file__:
            begins = frame
        frame = frame.f_back
    if begins is None or is_ours(begins.f_code) or any(path in begins.f_code.co_filename for path in QUIET):
        return None
    return f"{Path(begins.f_code.co_filename).name}:{begins.f_code.co_firstlineno}"
