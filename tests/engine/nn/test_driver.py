"""How a CUDA kernel is loaded and launched, on a driver that only writes down what it is told."""

from __future__ import annotations

import ctypes
import re
from types import SimpleNamespace

import pytest
import torch

from hotlap.engine.nn import cuda_walk, driver, walk
from hotlap.engine.nn.geometry import layout, parse

SIZE = ctypes.sizeof(cuda_walk.Arguments)
OURS, ANOTHER = 4711, 0xDEADBEEF_00000000  # a pointer that is no int


class Driver:
    """Contexts as the driver keeps them for a thread; loading and launching without one is its error 201."""

    def __init__(self):
        self.contexts, self.told, self.launched = [], [], []

    def __getattr__(self, name):
        return lambda *given: self.told.append(name) or 0

    def cuDevicePrimaryCtxRetain(self, context, number):
        context._obj.value = OURS
        return 0

    def cuCtxGetCurrent(self, context):
        context._obj.value = self.contexts[-1] if self.contexts else None
        return 0

    def cuCtxPushCurrent_v2(self, context):
        self.contexts.append(context)
        return 0

    def cuCtxPopCurrent_v2(self, context):
        self.contexts.pop()
        return 0

    def cuModuleLoadData(self, module, code):
        self.told.append("cuModuleLoadData")
        return 0 if self.contexts[-1:] == [OURS] else 201

    def cuLaunchKernel(self, function, *given):
        self.launched.append((*given, cuda_walk.Arguments.from_buffer_copy(ctypes.string_at(given[8][0], SIZE))))
        return 0 if self.contexts[-1:] == [OURS] else 201

    def cuGetErrorString(self, result, text):
        text._obj.value = b"invalid device context"
        return 0


@pytest.fixture
def fake(monkeypatch):
    made, caches = Driver(), (driver.primary, cuda_walk.kernel)
    monkeypatch.setattr(driver, "driver", lambda: made)
    monkeypatch.setattr(cuda_walk, "binary", lambda found, device: b"machine code")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))
    for one in caches:
        one.cache_clear()
    yield made
    for one in caches:
        one.cache_clear()


def a_walk():
    state, y = torch.zeros(5, 64), torch.zeros(3, 5, 64)
    one = walk.Walk("lstm", False, False, torch.zeros(3, 5, 256), torch.zeros(256, 64), None, None, None, None, y, None)
    one.h_n = one.c_n = state
    return one


def test_a_kernel_is_launched_with_the_tensors_of_the_walk_on_the_current_stream(fake):
    one, variant = a_walk(), parse("cuda:fma:r2:c4:b1")
    cuda_walk.launch(variant, one, backward=False)
    found = layout("lstm", 64, variant, False, False)
    ((*grid, stream, _, extra, given),) = fake.launched
    assert grid == [12, 1, 1, found.threads, 1, 1, found.shared_bytes]  # three groups of two rows, four blocks each
    assert (stream, extra) == (77, None)
    assert (given.batch, given.steps, given.gates) == (5, 3, one.gates.data_ptr())


@pytest.mark.parametrize("before", [[], [OURS], [ANOTHER]])
def test_torchs_context_is_current_for_a_kernel_and_the_thread_is_left_as_it_was(fake, before):
    """A thread of autograd's that did nothing on the GPU yet has none; a second GPU has another."""
    fake.contexts = list(before)
    for _ in range(2):
        cuda_walk.launch(parse("cuda:fma:r2:c1:b1"), a_walk(), backward=False)
    assert len(fake.launched) == 2
    assert fake.told.count("cuModuleLoadData") == 1
    assert fake.contexts == before


def test_what_the_driver_refuses_is_said_with_its_name(fake, monkeypatch):
    monkeypatch.setattr(driver, "primary", lambda device: ANOTHER)
    with pytest.raises(RuntimeError, match="CUDA error 201 in cuModuleLoadData: invalid device context"):
        cuda_walk.launch(parse("cuda:fma:r2:c1:b1"), a_walk(), backward=False)


def test_the_arguments_lie_as_the_kernel_reads_them():
    """`struct Walk`: pointers and long longs of 8 bytes, then ints of 4, with nothing between them."""
    fields = [name for name, *_ in cuda_walk.Arguments._fields_]
    offsets = [getattr(cuda_walk.Arguments, name).offset for name in fields]
    assert offsets == [*range(0, 8 * 20, 8), *range(8 * 20, 8 * 20 + 4 * 4, 4)]
    assert SIZE == 8 * 20 + 4 * 4
    struct = cuda_walk.SOURCE.read_text(encoding="utf-8").partition("struct Walk {")[2].partition("};")[0]
    declared = re.findall(r"(\w+)(?=[,;])", re.sub(r"//.*", "", struct))
    assert declared == fields
