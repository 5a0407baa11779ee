"""The workloads and the arms that train them, discovered in a folder: there is no list to edit."""

from __future__ import annotations

import ast
import difflib
import hashlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from hotlap.bench.record import Task
from hotlap.errors import HotlapError, UnknownName

FOLDER = "HOTLAP_WORKLOADS"
NAIVE, RUN, ENGINE, LIMIT = "naive", "run", "engine", "limit"
PEERS = ("lightning", "accelerate")  # each named after the package it needs
ARMS = (NAIVE, *PEERS, RUN, ENGINE, LIMIT)
SCRIPTS = {ENGINE: "fast"}  # other scripts are named after their arm
FAST = ("--plan", "fast")
# (workload, device) → options of hotlap run, where FAST is not best
BEST: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("banknotes", "cuda"): (*FAST, "--with", "autocast=bf16", "--without", "cudnn-autotuner"),
}
DIRECTION = "HIGHER_IS_BETTER"


def folder() -> Path:
    """Return HOTLAP_WORKLOADS or, without it, the workloads of the installed package or of the checkout."""
    package = Path(__file__).resolve().parents[1]
    chosen = os.environ.get(FOLDER)
    places = [Path(chosen)] if chosen else [package / "workloads", package.parent / "workloads"]
    for place in places:
        if names(place):
            return place.resolve()
    raise HotlapError(f"no workloads in {' or '.join(map(str, places))}; reinstall hotlap or set {FOLDER}")


def names(place: Path) -> tuple[str, ...]:
    return tuple(sorted(script.parent.name for script in place.glob("*/naive.py")))


def chosen(kind: str, wanted: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return `wanted` without duplicates; refuse an unknown name, suggesting the closest known one."""
    unique = tuple(dict.fromkeys(wanted))
    for name in unique:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UnknownName(f"no {kind} named {name!r}; {hint}there are {', '.join(known)}")
    return unique


def script(place: Path, workload: str, arm: str) -> list[str]:
    """Return the script of an arm, with the arguments that select the workload."""
    if arm in PEERS:
        return [str(place / f"peer_{arm}.py"), workload]
    return [str(place / workload / f"{SCRIPTS.get(arm, arm)}.py")]


def command(place: Path, workload: str, arm: str, arguments: Sequence[str], out: str) -> list[str]:
    """Return the command of an arm; it writes its files to the folder `out`."""
    if arm == RUN:
        best = BEST.get((workload, _device(arguments)), FAST)
        options = ["--run-dir", str(Path(out) / "hotlap"), *best]
        naive = command(place, workload, NAIVE, arguments, out)
        return [sys.executable, "-m", "hotlap", "run", *options, *naive]
    return [sys.executable, *script(place, workload, arm), *arguments]


def _device(arguments: Sequence[str]) -> str:
    named = [value for name, value in pairwise(arguments) if name == "--device"]
    return named[-1] if named else ""


def task(place: Path, name: str) -> Task:
    return Task(name=name, higher_is_better=_higher_is_better(place / name / "naive.py"), source=_source(place, name))


def _higher_is_better(path: Path) -> bool:
    """Read the constant from the source, since importing a workload takes seconds and needs its packages."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if DIRECTION in names and isinstance(node.value.value, bool):
                return node.value.value
    raise HotlapError(f"{path} does not set {DIRECTION} to True or False at its top level; add it")


def _source(place: Path, name: str) -> str:
    digest = hashlib.sha256()
    for path in sorted([*place.glob("*.py"), *(place / name).glob("*.py")]):
        digest.update(path.relative_to(place).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
