"""Tells whether other programs compete for the cores while a command is measured."""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

import psutil

MUCH = 0.25  # of the cores
LITTLE_IDLE = 0.15  # of the cores; where more is idle, nobody waits for anybody


class CoreSeconds(NamedTuple):
    """Seconds of the cores that this process is bound to."""

    all: float
    idle: float
    ours: float  # used by this process and by its children, once they have ended

    @classmethod
    def now(cls) -> CoreSeconds:
        times = psutil.cpu_times(percpu=True)
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(times))
        bound = [times[core] for core in cores if core < len(times)]
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return cls(
            all=sum(sum(core[:8]) for core in bound),  # what follows, of guests, is part of the first two
            idle=sum(core.idle + getattr(core, "iowait", 0.0) for core in bound),
            ours=sum(use.ru_utime + use.ru_stime for use in used),
        )


def compete(before: CoreSeconds, after: CoreSeconds) -> bool:
    """Return whether others used much of the cores and left nearly none of them idle."""
    whole = after.all - before.all
    if whole <= 0:
        return False
    idle = after.idle - before.idle
    others = whole - idle - (after.ours - before.ours)
    return others > MUCH * whole and idle < LITTLE_IDLE * whole
