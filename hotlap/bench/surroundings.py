"""The machine and the versions a bench runs on, read in a process of its own.

The bench itself never imports torch, which would hold memory and a CUDA context beside every arm it measures.
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

NEEDED = ("numpy", "scipy", "pandas", "h5py")  # by the workloads and the statistics
REPORTED = ("torch", "lightning", "accelerate", "numpy", "pandas", "h5py", "scipy", "hotlap")
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
    instead = f", or leave out the arms that need it: --arms {others}" if others else ""
    _require([arm for arm in arms if arm in PEERS], "the requested arms need", "peers", instead)


def _require(packages: Sequence[str], who: str, extra: str, instead: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise PackageMissing(f"{who} {' and '.join(missing)}; type: pip install 'hotlap[{extra}]'{instead}")


def look(device: str | None) -> tuple[Surroundings, str]:
    """Inspect the machine and choose the device: the requested one or, by default, a GPU where there is one."""
    command = [sys.executable, "-m", __name__, device or CUDA]
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise TorchUnusable(f"torch cannot be imported by {sys.executable} ({last}); repair or reinstall it")
    surroundings = from_json(Surroundings, done.stdout[done.stdout.index("{") :], "the report on this machine")
    if device == CUDA and not surroundings.cuda:
        raise NoDevice("--device cuda was given, but torch sees no GPU here; use --device cpu")
    return surroundings, device or (CUDA if surroundings.cuda else CPU)


def _seen(device: str) -> Surroundings:
    import torch

    from hotlap.observe.surroundings import machine

    cuda = device == CUDA and torch.cuda.is_available()
    if cuda:
        torch.zeros(1, device=CUDA)  # CUDA must be initialised before the GPU can be named
    versions = {"python": platform.python_version()}
    for name in REPORTED:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return Surroundings(machine=machine(torch), versions=versions, cuda=cuda)


if __name__ == "__main__":
    sys.stdout.write(to_json(_seen(sys.argv[1])))
