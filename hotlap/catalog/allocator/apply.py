"""Puts the allocator's setting into the command's environment, and says what the allocator made of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotlap.runtime.site import Site

SETTING = "expandable_segments:True"
# The second is the newer name; some versions of torch read only the first, and those that read the second first would
# otherwise warn about the first.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
DRIVERS = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))  # the last under Windows


def environment(value: Any, environ: Mapping[str, str]) -> dict[str, str]:
    """Both names or none: a setting of the user's under either name stays the only one. None without a GPU."""
    if any(name in environ for name in VARIABLES) or not any(path.exists() for path in DRIVERS):
        return {}
    return dict.fromkeys(VARIABLES, SETTING)


def apply(site: Site) -> None:
    site.after(site.seams.stepping, lambda *_: _look(site))


def _look(site: Site) -> None:
    """Once, when the device is in use: asking earlier would start it, and a program that forks later would fail."""
    if not site.torch.cuda.is_initialized():
        site.no_effect("the training does not use the GPU")
    elif expandable(site.torch.cuda.memory._snapshot()):
        site.applied("segments of device memory grow")
    else:
        site.no_effect("the allocator's setting is the user's own, or torch had started before hotlap")
    site.close()


def expandable(snapshot: Mapping[str, Any]) -> bool:
    return bool(snapshot.get("allocator_settings", {}).get("expandable_segments"))
