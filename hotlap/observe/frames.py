"""Finds the line of user code that is responsible. A frame is the user's unless its file belongs to a library."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import CodeType, FrameType

from hotlap.records.observation import CodeLine

# A program that is installed as a package lies in site-packages too: then only these packages count as libraries.
FRAMEWORKS = frozenset(
    "torch torchvision torchaudio lightning pytorch_lightning lightning_fabric accelerate transformers datasets numpy "
    "pandas scipy sklearn h5py tqdm torchmetrics timm ignite composer fastai deepspeed wandb tensorboard hotlap wrapt "
    "numba ray optuna".split()
)
_LIBRARY, _INSTALLED, _USER = 0, 1, 2

_stdlib = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})
_hotlap = f"{Path(__file__).parents[1]}/"
_generated = ("/torchinductor_", "/torch_compile_debug/")  # files that torch.compile writes to a temporary folder
_kinds: dict[str, int] = {}


def kind_of(filename: str) -> int:
    """Return 2 for a user's file, 1 for an installed one outside the known frameworks, 0 for a library."""
    kind = _kinds.get(filename)
    if kind is None:
        kind = _kinds[filename] = _judge(filename)
    return kind


def _judge(filename: str) -> int:
    if filename.startswith(("<", _hotlap)) or any(folder in filename for folder in _generated):
        return _LIBRARY
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in filename:
            package = filename.split(folder)[-1].split("/")[0].removesuffix(".py")
            return _LIBRARY if package in FRAMEWORKS else _INSTALLED
    return _LIBRARY if filename.startswith(_stdlib) else _USER


def is_program(filename: str, installed: bool = False) -> bool:
    """Whether a file is the user's, or with `installed` an installed one outside the known frameworks."""
    return kind_of(filename) >= (_INSTALLED if installed else _USER)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of user code, else that of an installed program, else the outermost frame."""
    installed = outermost = None
    while frame is not None:
        kind = kind_of(frame.f_code.co_filename)
        if kind == _USER:
            return frame
        if kind == _INSTALLED and installed is None:
            installed = frame
        outermost = frame
        frame = frame.f_back
    return installed or outermost


def place_of(code: CodeType, line: int) -> CodeLine:
    return CodeLine(file=code.co_filename, line=line, function=_qualified(code))


def _qualified(code: CodeType) -> str:
    name = str(getattr(code, "co_qualname", code.co_name))  # qualified from Python 3.11 on
    return name.replace(".<locals>", "")


def place_of_function(function: object) -> CodeLine | None:
    """Return where a function of the user is defined; None for a library's, which the user cannot change."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or kind_of(code.co_filename) == _LIBRARY:
        return None
    return place_of(code, code.co_firstlineno)


def short_library_place(frame: FrameType) -> str:
    """Return 'lightning/pytorch/loops/fit.py:12' for a frame in site-packages, else its file name and line."""
    filename = frame.f_code.co_filename
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in filename:
            return f"{filename.split(folder)[-1]}:{frame.f_lineno}"
    return f"{Path(filename).name}:{frame.f_lineno}"
