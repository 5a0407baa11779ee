"""Starts workers without forking the training where a fork would not be safe, after having tried it on the dataset."""

from __future__ import annotations

import multiprocessing
from typing import Any

from hotlap.catalog.gpus import gpus
from hotlap.catalog.main_script import why_not_twice
from hotlap.catalog.making import Making, NoEffect, Refused, when_made
from hotlap.catalog.site import Site
from hotlap.catalog.weighing import weigh

GRAPHS = "cuda-graphs"
CLEAN = "forkserver"  # forks from a process that knows nothing of the device


def apply(site: Site) -> None:
    when_made(site, lambda making: _settings(site, making))


def _settings(site: Site, making: Making) -> dict[str, Any]:
    if making.workers == 0:
        raise NoEffect(f"{making.name} is loaded without workers")
    if making.given.get("multiprocessing_context") is not None:
        raise NoEffect(f"the loader of {making.name} names its start method itself")
    method = site.value or found(site, making)
    _check(making, method)
    site.applied(f"workers of {making.name} by {method}")
    return {"multiprocessing_context": method}


def found(site: Site, making: Making) -> str:
    """Not by fork once graphs of the device will be captured or, where it was asked for, the device is in use."""
    if making.start_method != "fork":
        raise NoEffect(f"workers start by {making.start_method} already")
    graphs = GRAPHS in site.alongside and gpus(site.torch) > 0
    if graphs or (site.asked and site.torch.cuda.is_initialized()):
        return CLEAN
    raise NoEffect("a fork is safe here: no CUDA graph will be captured")


def _check(making: Making, method: str) -> None:
    before = making.start_method
    if method == before:
        raise NoEffect(f"workers start by {method} already")
    if method not in multiprocessing.get_all_start_methods():
        raise Refused(f"this system starts no process by {method}")
    if method == "fork":
        raise Refused(f"this program starts its workers by {before}; forking it may not be safe")
    if making.iterable:
        raise Refused(f"{making.name} is a stream: it cannot be tried beforehand")
    why = why_not_twice()
    if why is not None:
        raise Refused(why)
    there, here = weigh(making, method), weigh(making)
    if there.problem is not None:
        raise Refused(f"{making.name}: {there.problem}")
    if here.random is None and there.digest != here.digest:
        raise Refused(f"{making.name} gives other samples in workers started by {method}")
