"""The machine and the versions a bench runs on, read in a process of its own.

The bench itself never imports torch: it would hold memory, and a CUDA context, beside every arm it measures.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from hotlap.bench.workloads import PEERS
from hotlap.errors import NoDevice, PackageMissing, TorchUnusable
from hotlap.records.codec import from_json, to_json
from hotlap.records.observation import Machine

NEEDED = ("numpy", "scipy", "pandas", "h5py")  # by the workloads and by the statistics
TOLD = ("torch", "lightning", "accelerate", "numpy", "pandas", "h5py", "scipy", "hotlap")
CPU, CUDA = "cpu", "cuda"


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    machine: Machine
    versions: Mapping[str, str]
    cuda: bool  # torch can use a GPU


def require_packages(arms: Sequence[str]) -> None:
    if find_spec("torch") is None:
        raise TorchUnusable(
            f"torch is not installed in {sys.executable}; install it there: {sys.executable} -m pip install torch"
        )
    _require(NEEDED, "hotlap bench needs", "bench", "")
    others = ",".join(arm for arm in arms if arm not in PEERS)
    instead = f", or leave out what needs it: --arms {others}" if others else ""
    _require([arm for arm in arms if arm in PEERS], "the arms asked for need", "peers", instead)


def _require(packages: Sequence[str], who: str, extra: str, instead: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise PackageMissing(f"{who} {' and '.join(missing)}; type: pip install 'hotlap[{extra}]'{instead}")


def look(device: str | None) -> tuple[Surroundings, str]:
    """What is here, and the device to use: the one asked for, else a GPU where there is one."""
    asked = [sys.executable, "-m", __name__, device or CUDA]
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(asked, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise TorchUnusable(f"torch cannot be imported by {sys.executable} ({last}); repair or reinstall it")
    found = from_json(Surroundings, done.stdout[done.stdout.index("{") :], "the look at the machine")
    if device == CUDA and not found.cuda:
        raise NoDevice("--device cuda was asked for, but torch sees no GPU here; use --device cpu")
    return found, device or (CUDA if found.cuda else CPU)


def _seen(device: str) -> Surroundings:
    import torch

    from hotlap.observe.surroundings import machine

    cuda = device == CUDA and torch.cuda.is_available()
    if cuda:
        torch.zeros(1, device=CUDA)  # a GPU that nobody has used yet is not named
    versions = {"python": platform.python_version()}
    for name in TOLD:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return Surroundings(machine=machine(torch), versions=versions, cuda=cuda)


if __name__ == "__main__":
    sys.stdout.write(to_json(_seen(sys.argv[1])))
