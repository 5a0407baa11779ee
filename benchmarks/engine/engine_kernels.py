"""What a GPU does in a training, kernel by kernel.

`python benchmarks/engine/engine_kernels.py workloads/bloom/fast.py …`

The words after the script are its own. First every kernel by the time it takes in all, then when the device was idle
for longest in the second half of them, then the kernels of some steps in the middle of the training, with the stream
each ran on and the time in which none ran before it.
"""

from __future__ import annotations

import json
import runpy
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

SHOWN, IN_A_ROW = 20, 80
WIDTH = 90


class Kernel(NamedTuple):
    start: float  # microseconds
    length: float
    stream: int
    name: str


def kernels_of(trace: dict[str, Any]) -> list[Kernel]:
    """Return the kernels in the order in which they began."""
    found = [
        Kernel(event["ts"], event["dur"], event["args"]["stream"], event["name"])
        for event in trace["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    return sorted(found)


def by_name(kernels: list[Kernel]) -> list[str]:
    lengths: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        lengths[kernel.name].append(kernel.length)
    most = sorted(lengths.items(), key=lambda item: -sum(item[1]))[:SHOWN]
    return [
        f"{sum(durations) / 1e3:9.2f} ms {len(durations):8} × {sum(durations) / len(durations):6.2f} µs  {name[:WIDTH]}"
        for name, durations in most
    ]


def with_idle(kernels: list[Kernel]) -> list[tuple[float, Kernel]]:
    """Return each kernel with the microseconds before it in which none ran."""
    found, busy_until = [], kernels[0].start if kernels else 0.0
    for kernel in kernels:
        found.append((max(0.0, kernel.start - busy_until), kernel))
        busy_until = max(busy_until, kernel.start + kernel.length)
    return found


def longest_idle(kernels: list[Kernel]) -> list[str]:
    """List the longest idle times in the second half, when everything is prepared."""
    kernels = kernels[len(kernels) // 2 :]
    most = sorted(with_idle(kernels), reverse=True)[:SHOWN]
    begin = kernels[0].start
    return [
        f"{(kernel.start - begin) / 1e3:10.2f} ms  idle {gap:9.1f} µs before {kernel.name[:WIDTH]}"
        for gap, kernel in most
    ]


def in_a_row(kernels: list[Kernel]) -> list[str]:
    middle = len(kernels) // 2
    return [
        f"{kernel.start - kernels[middle].start:9.1f} µs  idle {gap:5.1f}  {kernel.length:6.1f} µs  "
        f"stream {kernel.stream:3}  {kernel.name[:WIDTH]}"
        for gap, kernel in with_idle(kernels)[middle : middle + IN_A_ROW]
    ]


def observed(script: str, arguments: list[str]) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            try:
                runpy.run_path(script, run_name="__main__")
            except SystemExit as ending:
                if ending.code:
                    raise
        path = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(path))
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    if not Path(sys.argv[1]).is_file():
        print(f"{sys.argv[1]} is not a script; name one first, such as workloads/bloom/fast.py", file=sys.stderr)
        return 2
    kernels = kernels_of(observed(sys.argv[1], sys.argv[2:]))
    if not kernels:
        print("no kernel was seen; this script needs a training on a GPU")
        return 1
    print("\n".join(["", *by_name(kernels), "", *longest_idle(kernels), "", *in_a_row(kernels)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
