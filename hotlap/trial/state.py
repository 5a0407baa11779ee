"""Runs inside a trial process: records the state that training reached by its last step, besides the losses.

Models and optimizers are held from the first step on, so that they can be read when the program is over. A step costs
nothing except a reading of the memory at some fifty of all steps; evaluations are summed on their own device.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotlap.observe.surroundings import memory
from hotlap.patch.dynamo import keep_out
from hotlap.patch.ledger import Ledger
from hotlap.patch.roots import children_of
from hotlap.records.traces import Evaluation, Fingerprint, State, Weight
from hotlap.trial.belongings import Roots
from hotlap.trial.fingerprints import Fingerprints, live_models, tensors_of
from hotlap.trial.holdings import Holdings
from hotlap.trial.process_facts import open_files, process_facts, threads

MEMORY_READINGS = 48  # over the requested steps
MOST_OPTIMIZERS = 16  # held
MOST_EVALUATIONS = 200  # reported one by one; a teacher model makes one in every step
MIB = 1 << 20
HOW = frozenset(
    ("params", "fused", "foreach", "capturable", "differentiable")
)  # settings of how a step is computed, not what


class Watch:
    def __init__(self, torch: Any, steps: int | None, ledger: Ledger) -> None:
        self._torch, self._every = torch, max(1, (steps or 0) // MEMORY_READINGS)
        self._prints = Fingerprints(torch)
        self._models: list[Any] = []
        self._start: dict[int, dict[str, tuple[float, ...]]] = {}  # sketches, by model
        self._optimizers: list[Any] = []
        self._weights: list[Weight] = []
        self._open_files: list[int] = []
        self._threads: list[int] = []
        self._roots = Roots(torch)
        self.evaluations = Evaluations(torch, ledger)

    def training_begins(self) -> None:
        """Hold the models that exist before the first step, and remember where their weights began."""
        self._models = live_models(self._torch)
        for model in self._models:
            self._start[id(model)] = self._prints.sketches(self._named(model))
        self.evaluations.watch(self._models)
        self._roots.training_begins()

    def stepped(self, optimizer: Any) -> None:
        if len(self._optimizers) < MOST_OPTIMIZERS and not any(known is optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)

    def step_over(self, steps: int, on_cuda: bool) -> None:
        self.evaluations.step = steps
        if steps == 2:
            self.evaluations.settle()
            self._roots.second_step_over()
        if steps % self._every == 0:
            device = self._torch.cuda.memory_allocated() / MIB if on_cuda else None
            self._weights.append(Weight(step=steps, host_mb=resident_mb(), device_mb=device))
            self._open_files.append(open_files())
            self._threads.append(threads())

    def state(self, world: int) -> State:
        evaluations = self.evaluations.records()
        weights, optimizers = tuple(self._all_weights()), tuple(self._all_optimizers())
        used = memory(self._torch)
        holdings = Holdings(self._torch, self._roots, self._compared())
        return State(
            weights=weights,
            optimizers=optimizers,
            streams=tuple(streams(self._torch)),
            evaluations=evaluations,
            memory=tuple(self._weights),
            reserved_mb=used.reserved_device_mb,
            host_total_mb=used.total_host_mb,
            device_total_mb=used.total_device_mb,
            unreadable=tuple(dict.fromkeys((*self._prints.unreadable, *holdings.unread))),
            world=world,
            process=tuple(process_facts(self._optimizers, self._open_files, self._threads)),
            held=tuple(holdings.held),
            contents=tuple(holdings.contents),
            own_streams=tuple(holdings.own_streams()),
            schedulers=tuple(holdings.schedulers()),
            threads=threads(),
        )

    def _compared(self) -> Iterator[int]:
        """Yield the ids of the tensors that are compared as weights."""
        for model in (*self._models, *live_models(self._torch)):
            for _, tensor in self._named(model):
                yield id(tensor)

    # Models, trained ones first, in the order of their optimizers

    def _all_weights(self) -> Iterator[Fingerprint]:
        known = {id(model) for model in self._models}
        models = [*self._models, *(model for model in live_models(self._torch) if id(model) not in known)]
        places = {
            id(weight): number
            for number, weight in enumerate(
                weight
                for optimizer in self._optimizers
                for group in optimizer.param_groups
                for weight in group["params"]
            )
        }
        counts: dict[str, int] = {}
        for model in sorted(models, key=lambda model: self._rank(model, places)):
            start = self._start.get(id(model), {})
            kind = type(model).__name__
            counts[kind] = counts.get(kind, 0) + 1
            name = kind if counts[kind] == 1 else f"{kind} {counts[kind]}"
            for found in self._prints.of(self._named(model)):
                yield Fingerprint(
                    name=f"{name}.{found.name}",
                    digest=found.digest,
                    norm=found.norm,
                    sketch=found.sketch,
                    start=start.get(found.name, ()),
                )

    def _rank(self, model: Any, places: dict[int, int]) -> tuple[int, str]:
        """Order models of one class by the optimizer that trains them, else by where they began."""
        first = min((places[id(weight)] for weight in model.parameters() if id(weight) in places), default=len(places))
        return first, repr(self._start.get(id(model)))

    def _named(self, model: Any) -> list[tuple[str, Any]]:
        with suppress(Exception):  # a class of the program's own may raise anything
            return list(tensors_of(model))
        return []

    # Optimizers

    def _all_optimizers(self) -> Iterator[Fingerprint]:
        for number, optimizer in enumerate(self._optimizers, start=1):
            kind = type(optimizer).__name__ + ("" if len(self._optimizers) == 1 else f" {number}")
            named = [(f"{kind}: {name}", value) for name, value in self._of_optimizer(optimizer)]
            yield from self._prints.of(named)

    def _of_optimizer(self, optimizer: Any) -> Iterator[tuple[str, Any]]:
        settings: dict[str, list[float]] = {}
        counts: dict[str, list[float]] = {}
        number = 0
        for group in optimizer.param_groups:
            for name, value in group.items():
                if name not in HOW:
                    settings.setdefault(name, []).extend(_numbers(value))
            for weight in group["params"]:
                for name, value in _entries(optimizer.state.get(weight)):
                    if hasattr(value, "numel") and value.numel() != 1:
                        yield f"{name} of parameter {number}", value
                    else:
                        counts.setdefault(name, []).extend(_numbers(value))
                number += 1
        for name, values in (settings | counts).items():
            if values:
                yield name, self._torch.tensor(values, dtype=self._torch.float64, device="cpu")


def _entries(state: Any) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(state.items(), key=lambda pair: str(pair[0])) if isinstance(state, dict) else ():
        for place, entry in enumerate(value if isinstance(value, list | tuple) else [value]):
            if entry is not None:
                yield (f"{name}[{place}]" if isinstance(value, list | tuple) else str(name)), entry


def _numbers(value: Any) -> list[float]:
    if isinstance(value, list | tuple):
        return [number for item in value for number in _numbers(item)]
    with suppress(TypeError, ValueError, RuntimeError):
        return [float(value)]
    return []


def streams(torch: Any) -> Iterator[tuple[str, str]]:
    """Yield a digest of the state of each stream of random numbers."""
    yield "torch", _digest(bytes(torch.random.default_generator.get_state().tolist()))
    if torch.cuda.is_initialized():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            yield f"cuda:{index}", _digest(bytes(state.tolist()))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, position, *more = numpy.random.get_state()
        yield "numpy", _digest(repr((kind, position, more)).encode() + keys.tobytes())
    yield "random", _digest(repr(random.getstate()).encode())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def resident_mb() -> float:
    """Return the memory of this process now; 0 if the system does not report it."""
    with suppress(OSError, ValueError, IndexError):
        return int(_own("/proc/self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB
    return 0.0


def _own(path: str) -> str:
    return Path(path).read_text(encoding="ascii")


class Evaluations:
    """Counts calls of a model that is not being trained: in eval mode, or without gradients. Outermost calls only."""

    def __init__(self, torch: Any, ledger: Ledger) -> None:
        self._torch, self._ledger = torch, ledger
        self._watched: dict[int, Any] = {}
        self._called: set[int] = set()
        self._inside = False
        self._sums: list[tuple[int, list[Any]]] = []  # of each evaluation: steps before it; calls, total, size
        self.step = 0
        keep_out(ledger)

    def watch(self, models: list[Any]) -> None:
        for model in models:
            self._watched[id(model)] = model
            if not self._ledger.holds(type(model), "__call__"):
                self._ledger.wrap(type(model), "__call__", self._layer)

    def settle(self) -> None:
        """Watch the children of a model that is never called itself, such as a LightningModule."""
        for model in [model for key, model in self._watched.items() if key not in self._called]:
            self.watch(children_of(model))

    def _layer(self, original: Any) -> Any:
        watched, called = self._watched, self._called

        @functools.wraps(original)
        def __call__(model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 it stands in for one
            if self._inside or id(model) not in watched:
                return original(model, *args, **kwargs)
            called.add(id(model))
            if model.training and self._torch.is_grad_enabled():
                return original(model, *args, **kwargs)
            self._inside = True
            try:
                outcome = original(model, *args, **kwargs)
            finally:
                self._inside = False
            with suppress(Exception):  # an outcome of the program's own type may raise anything
                self._note(outcome)
            return outcome

        return __call__

    def _note(self, outcome: Any) -> None:
        torch = self._torch
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        if not self._sums or (self._sums[-1][0] != self.step and len(self._sums) < MOST_EVALUATIONS):
            self._sums.append((self.step, [0, 0.0, 0.0]))
        sums = self._sums[-1][1]
        sums[0] += 1
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for tensor in _tensors(torch, outcome):
                number = tensor.detach().to(torch.float64)
                total, size = number.sum(), number.abs().sum()
                if not number.is_cuda:
                    total, size = total.item(), size.item()
                sums[1] = sums[1] + (1 + sums[0] / 1024) * total
                sums[2] = sums[2] + size

    def records(self) -> tuple[Evaluation, ...]:
        return tuple(
            Evaluation(step=step, calls=calls, total=float(total), size=float(size))
            for step, (calls, total, size) in self._sums
        )


def _tensors(torch: Any, outcome: Any, deepest: int = 3) -> Iterator[Any]:
    if isinstance(outcome, torch.Tensor):
        if outcome.is_floating_point() and outcome.numel():
            yield outcome
    elif deepest:
        parts = outcome.values() if isinstance(outcome, dict) else outcome if isinstance(outcome, list | tuple) else ()
        for part in parts:
            yield from _tensors(torch, part, deepest - 1)
