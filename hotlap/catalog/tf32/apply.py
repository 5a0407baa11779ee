"""Sets the precision of float32 products right after torch is imported, so that the program's own setting wins.

Since torch 2.9 there are two interfaces, and reading the old one raises once the new one was used. Setting the old one
keeps both in sync, so it is used here, and an error when reading means that the program has already chosen.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from hotlap.patch.silenced_warnings import unwarned
from hotlap.runtime.site import Site

ADVICE = r"(?is).*(tf32|precision)"  # a warning about the older interface, which the user did not use
OURS = "high"
PLAIN = "highest"
FIRST_CAPABLE = (8, 0)
EVERY = 100  # steps: a program may choose later, and checking takes longer than many an entry saves


def apply(site: Site) -> None:
    torch = site.torch
    if precision(torch) != PLAIN:
        site.no_effect("the program has already chosen a precision for matrix products")
        return
    put(torch, OURS)
    site.ledger.later(lambda: take_back(torch))
    steps = count()
    site.after(site.seams.stepping, lambda optimizer, _: None if next(steps) % EVERY else _report(site, optimizer))


def _report(site: Site, optimizer: Any) -> None:
    """Report the outcome after a step: earlier, querying the device could start CUDA in a process that will fork."""
    device = next(
        (parameter.device for group in optimizer.param_groups for parameter in group["params"] if parameter.is_cuda),
        None,
    )
    if device is None:
        return
    capability = site.torch.cuda.get_device_capability(device)
    chosen = precision(site.torch)
    if chosen != OURS:
        site.no_effect("the program has chosen its own precision for matrix products")
        site.close()
    elif capability < FIRST_CAPABLE:
        site.no_effect(f"a GPU of compute capability {'.'.join(map(str, capability))} has no TF32")
        site.close()
    else:
        site.applied("float32 matrix products; convolutions keep torch's default")


def precision(torch: Any) -> str | None:
    """Return the precision, or None if it was chosen through the newer interface, which the older cannot read."""
    with unwarned(torch, ADVICE):
        try:
            return str(torch.get_float32_matmul_precision())
        except RuntimeError:
            return None


def put(torch: Any, value: str) -> None:
    with unwarned(torch, ADVICE):
        torch.set_float32_matmul_precision(value)


def take_back(torch: Any) -> None:
    if precision(torch) == OURS:
        put(torch, PLAIN)
