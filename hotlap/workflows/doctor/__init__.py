"""hotlap doctor: what this machine, an interpreter and its torch allow, and what they do not.

The torch that is looked at is that of the interpreter that trains, in a process of its own: hotlap may be installed
elsewhere. `root` is the root of the file system, which tests replace.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hotlap import machine, store
from hotlap.catalog import entries
from hotlap.errors import RunFolderUnwritable
from hotlap.observe.surroundings import cpu_name
from hotlap.plan.needs import may_have_gpu
from hotlap.process.others import CoreSeconds
from hotlap.records.text_enum import TextEnum

OLDEST_PYTHON, OLDEST_TORCH = (3, 10), (2, 6)
PATIENCE = 120.0  # seconds: importing torch from a cold network disk takes a minute
LISTENING = 0.5  # seconds in which the load of the machine is measured
BUSY = 0.15  # share of the cores that others use, beyond which short steps cannot be compared
LITTLE_SHARED = 1 << 30  # bytes of shared memory, below which a few workers with large batches may end
STEADY_GOVERNORS = ("performance",)
GIB = 1 << 30
EXTRAS = {
    "tune": ("numpy", "scipy", "optuna"),
    "fix": ("libcst",),
    "bench": ("h5py", "matplotlib", "pandas"),
}
USES = {"tune": "hotlap tune and compare", "fix": "hotlap scan --fix", "bench": "hotlap bench"}
PROBE = Path(__file__).with_name("probe.py")


class State(TextEnum):
    GOOD = "good"
    NOTE = "note"  # something works less well, or not at all, which need not matter
    PROBLEM = "problem"  # hotlap does not work here


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    name: str
    state: State
    found: str
    advice: str = ""


def doctor(python: str, root: Path = machine.ROOT) -> tuple[Check, ...]:
    """Check everything that decides what hotlap can do here; takes as long as importing torch."""
    found = _asked(python)
    return (
        *_interpreter(python, found),
        *_gpus(found),
        *_cores(found, root),
        *_load(),
        *_governor(root),
        *_memory(root),
        *_shared_memory(root),
        *_state_folder(),
        *_extras(),
        *_cannot(found),
    )


def _asked(python: str) -> dict[str, Any]:
    try:
        done = subprocess.run([python, str(PROBE)], capture_output=True, text=True, timeout=PATIENCE)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"unusable": f"it did not answer within {PATIENCE:.0f} s"}
    except OSError as error:
        return {"unusable": error.strerror or str(error)}
    except (ValueError, IndexError):
        return {"unusable": "it does not answer as Python does"}
    return answer


def _interpreter(python: str, found: dict[str, Any]) -> Iterator[Check]:
    if "unusable" in found:
        yield _problem("Python", f"{python} cannot be used ({found['unusable']})", "name another: hotlap doctor PYTHON")
        return
    version = found["python"]
    place = f"{version} ({found['executable']})"
    if _numbers(version) < OLDEST_PYTHON:
        yield _problem("Python", place, "hotlap needs Python 3.10 or newer")
    else:
        yield Check(name="Python", state=State.GOOD, found=place)
    if "error" in found:
        advice = f"install it there: {found['executable']} -m pip install torch, or name another: hotlap doctor PYTHON"
        yield _problem("torch", f"cannot be imported ({found['error']})", advice)
    elif _numbers(found["torch"]) < OLDEST_TORCH:
        yield _problem("torch", found["torch"], "hotlap needs torch 2.6 or newer")
    else:
        yield Check(name="torch", state=State.GOOD, found=f"{found['torch']}, built for {_built_for(found)}")


def _built_for(found: dict[str, Any]) -> str:
    if found.get("hip"):
        return f"ROCm {found['hip']}"
    return f"CUDA {found['cuda']}" if found.get("cuda") else "CPUs only"


def _gpus(found: dict[str, Any]) -> Iterator[Check]:
    if "torch" not in found:
        return
    names, is_there = found.get("gpus", []), may_have_gpu(os.environ)
    if names:
        yield from _nvidia(found)
    elif "gpu_error" in found:
        yield _note("GPU", f"torch cannot use it ({found['gpu_error']})", "check the driver: nvidia-smi")
    elif is_there and not (found.get("cuda") or found.get("hip")):
        advice = "install a build of torch for it: https://pytorch.org/get-started/locally"
        yield _note("GPU", "there is one, but this torch is built for CPUs only", advice)
    elif is_there:
        yield _note("GPU", "there is a driver, but torch sees no GPU", "check the driver: nvidia-smi")
    elif os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        yield _note("GPU", "hidden by CUDA_VISIBLE_DEVICES", "unset CUDA_VISIBLE_DEVICES to use it")
    else:
        yield Check(name="GPU", state=State.GOOD, found="none; training runs on the CPU")


def _nvidia(found: dict[str, Any]) -> Iterator[Check]:
    names = found["gpus"]
    driver, used = _by_nvml()
    text = f"{len(names)} × {names[0]}{f', driver {driver}' if driver else ''}"
    unknown = [name for name in _unbuilt(found) if name]
    if unknown:
        yield _note("GPU", f"{text}; this torch has no kernels for {unknown[0]}", "install a newer build of torch")
    elif used:
        yield _note("GPU", f"{text}; in use: {used}", "wait for it, or choose another with CUDA_VISIBLE_DEVICES")
    else:
        yield Check(name="GPU", state=State.GOOD, found=text)


def _unbuilt(found: dict[str, Any]) -> Iterator[str]:
    """Yield the compute capabilities for which this torch has neither machine code nor code to compile it from."""
    built = found.get("architectures", [])
    for major, minor in found.get("capabilities", ()):
        same = any(name.startswith(f"sm_{major}") for name in built)
        if built and not same and not any(name.startswith("compute_") for name in built):
            yield f"sm_{major}{minor}"


def _by_nvml() -> tuple[str, str]:
    """Return the version of the driver, and by how much others use the first GPU; empty where NVML does not say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        first = pynvml.nvmlDeviceGetHandleByIndex(0)
        driver = pynvml.nvmlSystemGetDriverVersion()
        load = pynvml.nvmlDeviceGetUtilizationRates(first).gpu
        return (driver.decode() if isinstance(driver, bytes) else str(driver)), f"{load} % busy" if load > 5 else ""
    except Exception:  # noqa: BLE001 no NVML, or an older one
        return "", ""


def _cores(found: dict[str, Any], root: Path) -> Iterator[Check]:
    everywhere, usable = os.cpu_count() or 1, machine.usable_cores(root)
    text = f"{usable} of {everywhere} ({cpu_name()})" if usable < everywhere else f"{everywhere} ({cpu_name()})"
    threads = found.get("threads")
    if threads and threads > usable:
        yield _note(
            "cores",
            f"{text}; torch computes in {threads} threads",
            f"more threads than cores make steps slower: export OMP_NUM_THREADS={usable}",
        )
    elif usable < everywhere:
        yield _note("cores", text, "the rest is withheld by an affinity or by the quota of a control group")
    else:
        yield Check(name="cores", state=State.GOOD, found=text)


def _load() -> Iterator[Check]:
    share = _busy_share()
    found = f"{share:.0%} of the cores are busy"
    if share > BUSY:
        yield _note(
            "load", found, "end other programs before a tune: it needs more processes to see the same difference"
        )
    else:
        yield Check(name="load", state=State.GOOD, found=found)


def _busy_share() -> float:
    """Return the share of the usable cores that are busy while we sleep."""
    before = CoreSeconds.now()
    time.sleep(LISTENING)
    after = CoreSeconds.now()
    return 1.0 - (after.idle - before.idle) / max(after.all - before.all, 1e-9)


def _governor(root: Path) -> Iterator[Check]:
    folder = root / "sys/devices/system/cpu"
    names = sorted({_text(path) for path in folder.glob("cpu[0-9]*/cpufreq/scaling_governor")} - {""})
    if not names:
        return
    found = f"frequency governor {', '.join(names)}"
    if set(names) <= set(STEADY_GOVERNORS):
        yield Check(name="clock", state=State.GOOD, found=found)
    else:
        yield _note("clock", found, "steadier figures: sudo cpupower frequency-set --governor performance")


def _memory(root: Path) -> Iterator[Check]:
    free, total = machine.free_bytes(root), machine.total_bytes(root)
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limited = f", limited by a control group (the machine has {_gib(whole)})" if total < whole else ""
    found = f"{_gib(free)} free of {_gib(total)}{limited}"
    if machine.memory_nearly_gone(root) is not None:
        yield _note("memory", found, "free some: nothing is cached where memory is nearly used up")
    else:
        yield Check(name="memory", state=State.GOOD, found=found)


def _shared_memory(root: Path) -> Iterator[Check]:
    folder = root / "dev/shm"
    if not folder.is_dir():
        return
    usage = shutil.disk_usage(folder)
    found = f"{_gib(usage.free)} free of {_gib(usage.total)}"
    if usage.free < LITTLE_SHARED:
        advice = "workers of a DataLoader end with a bus error when it is full; a container takes --shm-size=8g"
        yield _note("shared memory", found, advice)
    else:
        yield Check(name="shared memory", state=State.GOOD, found=found)


def _state_folder() -> Iterator[Check]:
    try:
        yield Check(name="saves in", state=State.GOOD, found=str(store.prepare(store.home(), "runs").parent))
    except RunFolderUnwritable as error:
        found, _, advice = str(error).partition("; ")
        yield _problem("saves in", found, advice)


def _extras() -> Iterator[Check]:
    for extra, packages in EXTRAS.items():
        missing = [name for name in packages if find_spec(name) is None]
        if missing:
            advice = f"{sys.executable} -m pip install 'hotlap[{extra}]'"
            yield _note(USES[extra], f"{', '.join(missing)} missing", advice)


def _cannot(found: dict[str, Any]) -> Iterator[Check]:
    """Say which optimisations cannot work with this torch, and why; each refuses by itself where it is tried."""
    if "torch" not in found:
        return
    if not found.get("gpus"):
        needing = [name for name, entry in entries().items() if entry.device == "cuda"]
        yield _note("not here", f"{', '.join(sorted(needing))}: they need a GPU")
        if found.get("bf16") is False:
            yield _note("not here", "autocast with bf16: this CPU computes it only by emulation, many times slower")
    too_old = [name for name, entry in entries().items() if _numbers(found["torch"]) < entry.torch]
    if too_old:
        yield _note("not here", f"{', '.join(sorted(too_old))}: they need a newer torch")
    if not found.get("compiler") and not found.get("gpus"):
        yield _note("not here", "compile: there is no C++ compiler", "install g++ or clang++")
    if found.get("gpus") and not found.get("triton"):
        yield _note(
            "not here", "compile and norm-kernels: triton is missing", "install torch from a wheel that brings it"
        )


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int("".join(digit for digit in minor if digit.isdigit()) or 0)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _note(name: str, found: str, advice: str = "") -> Check:
    return Check(name=name, state=State.NOTE, found=found, advice=advice)


def _problem(name: str, found: str, advice: str) -> Check:
    return Check(name=name, state=State.PROBLEM, found=found, advice=advice)
