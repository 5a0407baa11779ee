"""What an optimisation that was asked for by name needs, as far as it can be known before the command starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hotlap.catalog import entries
from hotlap.errors import NoDevice
from hotlap.records.plan import Choice

DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # NVIDIA, the same under WSL, AMD
NONE_VISIBLE = ("", "-1")


def refuse_unmet(choices: Iterable[Choice], environ: Mapping[str, str]) -> None:
    """Of what was named by --with: what a plan brings along says for itself that it has no effect here."""
    demanding = [choice.name for choice in choices if entries()[choice.name].device == "cuda"]
    if demanding and not may_have_gpu(environ):
        needs = "need" if len(demanding) > 1 else "needs"
        raise NoDevice(f"{' and '.join(demanding)} {needs} a GPU, and this machine shows none; leave it out of --with")


def may_have_gpu(environ: Mapping[str, str]) -> bool:
    if environ.get("CUDA_VISIBLE_DEVICES") in NONE_VISIBLE:
        return False
    return any(Path(driver).exists() for driver in DRIVERS)
