"""Refuses requested optimizations whose needs are visibly unmet before the command starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hotlap.catalog import entries
from hotlap.errors import NoDevice
from hotlap.records.plan import Choice

DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # NVIDIA, NVIDIA under WSL, AMD
NONE_VISIBLE = ("", "-1")


def refuse_unmet(choices: Iterable[Choice], environ: Mapping[str, str]) -> None:
    """Refuse choices of --with that need a GPU where there is none; those of a plan report no effect by themselves."""
    demanding = [choice.name for choice in choices if entries()[choice.name].device == "cuda"]
    if demanding and not may_have_gpu(environ):
        needs = "need" if len(demanding) > 1 else "needs"
        raise NoDevice(f"{' and '.join(demanding)} {needs} a GPU, and none is visible here; remove it from --with")


def may_have_gpu(environ: Mapping[str, str]) -> bool:
    if environ.get("CUDA_VISIBLE_DEVICES") in NONE_VISIBLE:
        return False
    return any(Path(driver).exists() for driver in DRIVERS)
