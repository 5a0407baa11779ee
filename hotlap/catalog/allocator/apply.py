"""Put the allocator's setting into the command's environment, and report whether the allocator uses it."""

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
    """Return both variables, or none if the user has set either of them or if there is no GPU."""
    if any(name in environ for name in VARIABLES) or not any(path.exists() for path in DRIVERS):
        return {}
    return dict.fromkeys(VARIABLES, SETTING)


def apply(site: Site) -> None:
    site.after(site.seams.stepping, lambda *_: _look(site))


def _look(site: Site) -> None:
    """Check once, when the device is in use: an earlier check would start it, and a later fork would fail."""
    if not site.torch.cuda.is_initialized():
        site.no_effect("the training does not use the GPU")
    elif expandable(site.torch.cuda.memory._snapshot()):
        site.applied("segments of device memory grow")
    else:
        site.no_effect("the allocator has the user's own setting, or torch had started before hotlap")
    site.close()


def expandable(snapshot: Mapping[str, Any]) -> bool:
    return bool(snapshot.get("allocator_settings", {}).get("expandable_segments"))
