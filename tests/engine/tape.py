"""A CUDA graph emulated on the CPU: the operations of a step are recorded with the very tensors they used.

A replay runs no Python of the step. Each operation is done again on the recorded tensors and its result goes to where
the recorded one is, as a graph's kernels read and write fixed addresses: a tensor that was replaced, a number that was
read on the host or a learning rate that is no tensor shows as a wrong training.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

VIEWS = {
    torch.ops.aten.detach.default, torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default,
    torch.ops.aten.alias.default, torch.ops.aten.t.default, torch.ops.aten.reshape.default,
}  # fmt: skip
HOST_READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default}


class EmulatedLanes:
    """Lanes that run one after the other; they know which lane an operation belongs to, and what it may not touch."""

    def __init__(self):
        self.lane = None  # None: the main stream
        self.forks = self.joins = 0
        self.written = {}  # in lanes since the last join: which lane wrote an address, and memory that must stay alive
        self.read = []  # in lanes since the last join: memory that must not be reused before the next one
        self.in_use = {}  # for each address, the lanes that must be done with it before others write

    @contextmanager
    def beside(self, lane):
        self.forks += 1
        self.lane = lane
        try:
            yield
        finally:
            self.lane = None

    def join(self):
        assert not any(storage.expired() for storage in self.read), "memory read beside was freed before the join"
        self.joins += 1
        self.written, self.read, self.in_use = {}, [], {}

    def check(self, func, args, kwargs, found):
        if func in VIEWS:
            return
        given = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        made = [value for value in tree_flatten(found)[0] if isinstance(value, torch.Tensor)]
        for tensor in given:
            assert self._is_alone(self.written, tensor), f"{func} reads what is made beside"
        for tensor in made if func._schema.is_mutable else ():
            assert self._is_alone(self.in_use, tensor), f"{func} writes what is read beside"
        if self.lane is not None:
            self.read += [StorageWeakRef(tensor.untyped_storage()) for tensor in given]
            for tensor in made:
                self.written[tensor.untyped_storage().data_ptr()] = {self.lane: tensor}
            for tensor in given:
                self.in_use.setdefault(tensor.untyped_storage().data_ptr(), {})[self.lane] = None

    def _is_alone(self, whose, tensor):
        return set(whose.get(tensor.untyped_storage().data_ptr(), ())) <= {self.lane}


class Watched(TorchDispatchMode):
    """Checks the lanes and, unlike a recording, keeps no tensor alive."""

    def __init__(self, lanes):
        super().__init__()
        self.lanes = lanes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        self.lanes.check(func, args, kwargs, found)
        return found


class Tape(TorchDispatchMode):
    def __init__(self, lanes=None):
        super().__init__()
        self.operations, self.lanes = [], lanes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in HOST_READS:
            raise RuntimeError("operation not permitted when stream is capturing: a value is read on the host")
        found = func(*args, **kwargs)
        if self.lanes is not None:
            self.lanes.check(func, args, kwargs, found)
        if func.namespace != "profiler":
            self.operations.append((func, args, kwargs, found))
        return found


class EmulatedRecorder:
    def __init__(self, lanes=None):
        self.captures = self.replays = 0
        self._lanes = lanes

    def lanes(self):
        return self._lanes

    def capture(self, work):
        """Recording runs the work here, which a real capture does not; the caller restores the state in any case."""
        self.captures += 1
        with Tape(self._lanes) as tape:
            work()
        operations = tape.operations

        def replay():
            self.replays += 1
            with torch.no_grad():
                for func, args, kwargs, found in operations:
                    overwrite(found, func(*args, **kwargs))

        return replay

    def finish(self):
        pass


def overwrite(recorded, new):
    """In-place operations and views return memory that already holds the right values."""
    for target, value in zip(tree_flatten(recorded)[0], tree_flatten(new)[0], strict=True):
        are_tensors = isinstance(target, torch.Tensor) and isinstance(value, torch.Tensor)
        if are_tensors and target.numel() and target.data_ptr() != value.data_ptr():
            target.copy_(value)
