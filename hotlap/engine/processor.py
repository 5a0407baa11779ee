"""How a CPU computes: by oneDNN or by the BLAS torch was built with, on how many threads.

On some processors oneDNN spends more on preparing a small product than on computing it, and two threads spend more on
waiting for each other than either on its half. What is faster depends on the model, so it is measured.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from hotlap.engine.recipe import Recipe

WORTH_TRYING = 100  # steps ahead


class Way(NamedTuple):
    onednn: bool = True
    threads: int = 0  # 0: as many as there are
    words: str = ""  # what is unusual about it


USUAL = Way()


def present() -> Way:
    return Way(bool(torch.backends.mkldnn.enabled), torch.get_num_threads())


def use(way: Way) -> None:
    """Apply to the whole process; restored when the training ends."""
    torch.backends.mkldnn.enabled = way.onednn  # type: ignore[assignment]
    if way.threads and way.threads != torch.get_num_threads():
        torch.set_num_threads(way.threads)


def requested_way(recipe: Recipe) -> Way:
    """Return the present way, but for what the recipe leaves no choice about."""
    now = present()
    return Way(now.onednn and recipe.onednn != "off", recipe.threads or now.threads)


def ways_to_try(recipe: Recipe, model: nn.Module, device: torch.device, steps_ahead: int) -> tuple[Way, ...]:
    """Return the ways worth measuring, the present one first. Convolutions need oneDNN and are not tried without it."""
    now = present()
    if device.type != "cpu" or steps_ahead < WORTH_TRYING:
        return (now,)
    convolves = any(isinstance(module, _ConvNd) for module in model.modules())
    switches = (True, False) if now.onednn and recipe.onednn == "auto" and not convolves else (now.onednn,)
    counts = (now.threads, 1) if now.threads > 1 and recipe.threads is None else (now.threads,)
    return tuple(Way(onednn, threads, _words(onednn, threads, now)) for threads in counts for onednn in switches)


def _words(onednn: bool, threads: int, now: Way) -> str:
    suffix = "" if threads == now.threads else " on one thread"
    return suffix + ("" if onednn == now.onednn else " without oneDNN")
