"""Whether the program would notice extra processes: it handles SIGCHLD, or registers functions to run at forks.

Python does not reveal which functions are registered for a fork. So from the start of the process, we note whether the
program registers one. Those of Python itself and of a few known libraries release a lock, reseed or clear something of
their own in the child, and do not matter here; any other package, installed or not, may count the forks.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import sysconfig
from pathlib import Path
from typing import Any

INSTALLED = ("site-packages", "dist-packages")
HARMLESS = frozenset(  # libraries that register functions, none of which shows that a process was forked
    (
        *("torch", "numpy", "matplotlib", "joblib", "pyarrow", "h5py", "filelock", "fsspec", "huggingface_hub"),
        *("importlib_metadata", "setuptools", "pkg_resources"),
    )
)
_OURS = __name__.partition(".")[0]
_registered_by: list[str] = []
_for_good: list[Any] = []


def watch_registrations() -> None:
    """Watch os.register_at_fork; called once, before the program's first line."""
    register = os.register_at_fork

    @functools.wraps(register)
    def register_at_fork(**functions: Any) -> None:
        name = str(sys._getframe(1).f_globals.get("__name__", ""))
        if _is_of_the_program(name.partition(".")[0], sys._getframe(1).f_code.co_filename):
            _registered_by.append(name)
        register(**functions)

    os.register_at_fork = register_at_fork


def _is_of_the_program(package: str, file: str) -> bool:
    if any(folder in Path(file).parts for folder in INSTALLED):
        return package not in (_OURS, *HARMLESS)
    return package != _OURS and not is_of_python(file)


def is_of_python(file: str) -> bool:
    """Return whether the file belongs to the standard library."""
    installed = any(folder in Path(file).parts for folder in INSTALLED)  # often a folder in the standard library's
    return file.startswith(("<frozen", _standard_library())) and not installed


@functools.cache
def _standard_library() -> str:
    return sysconfig.get_paths()["stdlib"] + os.sep


def why_no_processes() -> str | None:
    """Return why processes must be neither added nor saved in this program, or None."""
    handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    if without_torchs_own(handler) not in (None, signal.SIG_DFL, signal.SIG_IGN):
        return "the program handles SIGCHLD, so it would notice other processes ending"
    if _registered_by:
        return f"{_registered_by[0]} runs functions at each fork, so it would notice other forks"
    return None


def without_torchs_own(handler: Any) -> Any:
    """Return the program's SIGCHLD handler, if any, behind the one by which torch watches its workers."""
    while getattr(handler, "__module__", None) == "torch.utils.data._utils.signal_handling":
        code, cells = handler.__code__, handler.__closure__ or ()
        held = dict(zip(code.co_freevars, cells, strict=True))
        handler = held["previous_handler"].cell_contents if "previous_handler" in held else None
    return handler


def never_free(held: Any) -> None:
    """Keep an object and all it refers to alive, even at interpreter exit: in a child forked from a process that uses
    CUDA, nothing on a device can be freed.
    """
    if not _for_good:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_for_good))
    _for_good.append(held)
