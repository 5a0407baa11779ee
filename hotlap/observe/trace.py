"""Reads a Chrome trace of a few steps: the device's busy time, launches, waits, and top kernels."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from hotlap.records.observation import DeviceActivity, Kernel

DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
LAUNCH = re.compile(r"^(cuda|cu)(LaunchKernel|LaunchKernelExC|LaunchKernelEx|GraphLaunch|LaunchCooperativeKernel)")
WAIT = re.compile(r"^(cuda|cu)(Stream|Device|Event|Ctx)Synchronize")
# Tried in this order: the first pattern that matches a kernel's name decides its kind.
KINDS = (
    ("other", re.compile(r"nccl", re.IGNORECASE)),  # AllReduce is not a reduction of the program
    ("memory", re.compile(r"^triton_(poi|red|per|for)_")),  # named after everything it fuses, "convolution" included
    ("recurrent", re.compile(r"lstm|gru|rnn", re.IGNORECASE)),
    ("attention", re.compile(r"flash|attention|fmha", re.IGNORECASE)),
    ("convolution", re.compile(r"conv|winograd|wgrad|dgrad|fprop|implicit_gemm", re.IGNORECASE)),
    ("matmul", re.compile(r"triton_tem_|gemm|gemv|cutlass|cublas|nvjet|matmul|splitK", re.IGNORECASE)),
    ("copy", re.compile(r"memcpy|memset|copy", re.IGNORECASE)),
    (
        "memory",
        re.compile(r"elementwise|reduce|norm|softmax|triton|foreach|multi_tensor|fill|index|pool", re.IGNORECASE),
    ),
)
TOP = 10


def read_trace(path: Path, steps: int, mean_step_ms: float) -> DeviceActivity | None:
    """Summarise the device's work in a trace; None if it holds none."""
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    work = [event for event in events if event.get("cat") in DEVICE_WORK and "dur" in event]
    if not work or steps < 1:
        return None
    calls = [str(event.get("name")) for event in events if event.get("cat") in RUNTIME]
    busy = _union_ms(work) / steps
    return DeviceActivity(
        steps=steps,
        busy_ms_per_step=busy,
        busy_share=min(1.0, busy / mean_step_ms) if mean_step_ms else 0.0,
        launches_per_step=sum(1 for name in calls if LAUNCH.match(name)) / steps,
        syncs_per_step=sum(1 for name in calls if WAIT.match(name)) / steps,
        kernels=_kernels(work, steps),
    )


def kind_of_kernel(name: str) -> str:
    return next((kind for kind, pattern in KINDS if pattern.search(name)), "other")


def _union_ms(work: list[dict[str, Any]]) -> float:
    """Return the time with at least one piece of work on the device; streams may overlap."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted((float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in work):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total / 1000


def _kernels(work: list[dict[str, Any]], steps: int) -> tuple[Kernel, ...]:
    spent: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for event in work:
        row = spent[str(event["name"])]
        row[0] += 1
        row[1] += float(event["dur"]) / 1000
    total = sum(row[1] for row in spent.values()) or 1.0
    top = sorted(spent.items(), key=lambda item: -item[1][1])[:TOP]
    return tuple(
        Kernel(
            name=name,
            kind=kind_of_kernel(name),
            per_step=count / steps,
            ms_per_step=ms / steps,
            share=ms / total,
        )
        for name, (count, ms) in top
    )
