"""A CUDA graph emulated on the CPU: the operations of a step are recorded with the very tensors they used.

A replay runs no Python of the step. Each operation is done again on the recorded tensors and its result goes to where
the recorded one is, as a graph's kernels read and write fixed addresses: a tensor that was replaced, a number that was
read on the host or a learning rate that is no tensor shows as a wrong training.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

HOST_READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default}


class Tape(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in HOST_READS:
            raise RuntimeError("operation not permitted when stream is capturing: a value is read on the host")
        found = func(*args, **kwargs)
        if func.namespace != "profiler":
            self.operations.append((func, args, kwargs, found))
        return found


class EmulatedRecorder:
    def __init__(self):
        self.captures = self.replays = 0

    def capture(self, work):
        """Recording does the work here, which a capture does not; the caller puts the state back in any case."""
        self.captures += 1
        with Tape() as tape:
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
    """In-place operations and views return memory that is already right."""
    for one, other in zip(tree_flatten(recorded)[0], tree_flatten(new)[0], strict=True):
        are_tensors = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        if are_tensors and one.numel() and one.data_ptr() != other.data_ptr():
            one.copy_(other)
