"""Checkpoints of weights that several processes share out, by torch.distributed.checkpoint.

Every process writes its parts of the tensors to a folder `shards-000001`; once all have, the first one writes the rest
to last.pt, as in any other checkpoint, with the name of the folder. Any number of processes can read them.
"""

from __future__ import annotations

import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hotlap.engine.checkpoints import State, Writer, last_good
from hotlap.engine.errors import CheckpointDamaged
from hotlap.engine.processes import Processes
from hotlap.engine.sharding import is_sharded, like

OF_MODEL = ("model", "average", "average_sums")  # parts of a state that are named like the model's weights


class ShardedWriter(Writer):
    def __init__(self, folder: Path, processes: Processes) -> None:
        super().__init__(folder)
        self.processes = processes
        self.group = processes.for_files()  # its own: the steps use the other one at the same time
        numbers = [int(path.name.split("-")[1]) for path in folder.glob("shards-*")]
        self.number = processes.highest(max(numbers, default=0))
        self.folders: dict[str, str] = {}  # of the shards of each checkpoint

    def prepare(self) -> None:
        super().prepare()
        if self.processes.is_first:
            for path in self.folder.glob("*.pt"):
                self.folders[path.name] = _shards_of(path)
            self._clean()

    def _write(self, state: State, ready: Callable[[], None], names: Sequence[str]) -> None:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_saver import save

        ready()
        self.number += 1
        folder = self.folder / f"shards-{self.number:06d}"
        shards = {name: holder.pop(key) for name, holder, key in list(_sharded(state))}
        try:
            save(shards, checkpoint_id=folder, process_group=self.group)
            sums = self.processes.gathered(_sums(folder, f"__{self.processes.rank}_*"), self.group)
        except (CheckpointException, OSError, RuntimeError) as error:
            self.failed |= {name: f"no checkpoint could be written to {folder}: {_why(error)}" for name in names}
            return
        if self.processes.is_first:
            both = {name: number for own in sums for name, number in own.items()}
            super()._write({**state, "shards": folder.name, "sums": both}, ready, names)
            self.folders |= {name: folder.name for name in names if name not in self.failed}
            self._clean()
            return
        for name in names:
            self.failed.pop(name, None)
        self.last_good = self.folder / names[0]

    def _remove(self, names: Sequence[str]) -> None:
        if self.processes.is_first:
            super()._remove(names)
            for name in names:
                self.folders.pop(name, None)
            self._clean()

    def _clean(self) -> None:
        """Remove the shards of no checkpoint, such as those of one that was replaced or only half written."""
        for path in self.folder.glob("shards-*"):
            if path.name not in self.folders.values():
                shutil.rmtree(path, ignore_errors=True)


def _sums(folder: Path, pattern: str) -> dict[str, int]:
    """Return a checksum of each file, which torch does not keep."""
    found = {}
    for path in folder.glob(pattern):
        with path.open("rb") as file:
            number = 0
            while part := file.read(1 << 22):
                number = zlib.crc32(part, number)
        found[path.name] = number
    return found


def _shards_of(path: Path) -> str:
    try:
        return str(torch.load(path, map_location="cpu", weights_only=True, mmap=True).get("shards", ""))
    except Exception:  # noqa: BLE001 - whatever unpickling makes of a damaged file; it is refused where it is resumed
        return ""


def _sharded(state: State) -> Iterator[tuple[str, dict[Any, Any], Any]]:
    """Yield what is shared out: its name in the shards, and where the state holds it."""
    for part in OF_MODEL:
        for name, value in state[part].items():
            if isinstance(value, Tensor) and is_sharded(value):
                yield f"{part}/{name}", state[part], name
    for number, entries in state["optimizer"]["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor) and is_sharded(value):
                yield f"optimizer/{number}/{name}", entries, name


def with_shards(state: State, path: Path, model: nn.Module, optimizer: Optimizer) -> State:
    """Return the state with all its tensors, shared out as this run's weights are: one process has them whole."""
    if "shards" in state:
        state = _read(state, path, model, optimizer)
    names, owned = dict(model.named_parameters()), _owned(optimizer)
    for part in OF_MODEL:
        state[part] = {name: like(value, names.get(name, value)) for name, value in state[part].items()}
    for number, entries in state["optimizer"]["state"].items():
        if number < len(owned):
            entries.update({name: like(value, owned[number]) for name, value in entries.items()})
    return state


def _read(state: State, path: Path, model: nn.Module, optimizer: Optimizer) -> State:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    from hotlap.engine.run_state import require_same_model

    folder = path.parent / state["shards"]
    names, owned = dict(model.named_parameters()), _owned(optimizer)
    try:
        now = _sums(folder, "__*")
        if changed := [name for name, number in state["sums"].items() if now.get(name) != number]:
            raise OSError(f"{changed[0]} in it is missing or has changed since it was written")
        metadata: Any = FileSystemReader(folder).read_metadata().state_dict_metadata
        sizes = {key: torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
                 for key, entry in metadata.items()}  # fmt: skip
        weights = {key.partition("/")[2]: size for key, size in sizes.items() if key.startswith("model/")}
        require_same_model(model, {**state["model"], **weights}, path)
        shards: dict[str, Tensor] = {}
        for key, size in sizes.items():
            part, _, name = key.partition("/")
            number = int(name.partition("/")[0]) if part == "optimizer" else 0
            if part == "optimizer" and number >= len(owned):
                continue  # of another optimizer, which is refused later
            parameter = owned[number] if part == "optimizer" else names[name]
            shards[key] = torch.empty_like(parameter, dtype=size.dtype, requires_grad=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that one process reads alone
            load(shards, checkpoint_id=folder)
    except (CheckpointException, OSError, RuntimeError, EOFError, KeyError) as error:
        good = last_good(path)
        hint = f"the last good one is {good}" if good else "there is no good one in its folder"
        raise CheckpointDamaged(f"{folder} cannot be read: {_why(error)}; {hint}") from error
    for key, tensor in shards.items():
        part, _, name = key.partition("/")
        if part == "optimizer":
            owner, _, entry = name.partition("/")
            state["optimizer"]["state"][int(owner)][entry] = tensor
        else:
            state[part][name] = tensor
    return state


def _owned(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _why(error: BaseException) -> str:
    """Return the first line of the reason: torch gathers those of all processes, with their tracebacks."""
    failures = getattr(error, "failures", None)
    reason = next(iter(failures.values()))[0] if failures else error
    return (str(reason).strip().splitlines() or [type(reason).__name__])[0]
