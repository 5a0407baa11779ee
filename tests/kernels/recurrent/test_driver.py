"""How a CUDA kernel is loaded and launched, by a fake driver that records its calls."""

from __future__ import annotations

import ctypes
import re
import struct

import pytest
import torch

from hotlap.engine import nn as ours
from hotlap.kernels.cuda import driver
from hotlap.kernels.recurrent import cuda_recurrence, plans, selection
from hotlap.kernels.recurrent.geometry import layout, parse

SIZE = struct.calcsize("19Q5q4i")
OURS, ANOTHER = 4711, 0xDEADBEEF_00000000  # a pointer that is no int


class Driver:
    """Tracks contexts as the driver does for a thread; loading or launching without one is its error 201."""

    def __init__(self):
        self.contexts, self.calls, self.launched = [], [], []

    def __getattr__(self, name):
        return lambda *given: self.calls.append(name) or 0

    def cuDevicePrimaryCtxRetain(self, context, number):
        context._obj.value = OURS
        return 0

    def cuCtxGetCurrent(self, context):
        context._obj.value = self.contexts[-1] if self.contexts else None
        return 0

    def cuCtxSetCurrent(self, context):
        self.contexts[-1:] = [context]
        return 0

    def cuCtxPushCurrent_v2(self, context):
        self.contexts.append(context)
        return 0

    def cuCtxPopCurrent_v2(self, context):
        self.contexts.pop()
        return 0

    def cuModuleLoadData(self, module, code):
        self.calls.append("cuModuleLoadData")
        return 0 if self.contexts[-1:] == [OURS] else 201

    def cuLaunchKernel(self, function, *given):
        if self.contexts[-1:] != [OURS]:
            return 201
        lies = ctypes.cast(given[8], ctypes.POINTER(ctypes.c_void_p))[0]
        self.launched.append((*given, ctypes.string_at(lies, SIZE)))
        return 0

    def cuFuncGetAttribute(self, value, number, function):
        value._obj.value = 10 * number
        return 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, value, function, threads, shared):
        value._obj.value = 3 if (threads, shared) == (128, 2048) else 0
        return 0

    def cuGetErrorString(self, result, text):
        text._obj.value = b"invalid device context"
        return 0


@pytest.fixture
def fake(monkeypatch, answering):
    """The fake driver, for layers that are on the CPU."""
    made, caches = Driver(), (driver.primary, cuda_recurrence.kernel, plans.planned)
    monkeypatch.setattr(driver, "driver", lambda: made)
    answering(cuda_recurrence, binary=b"machine code")
    answering(plans, stream_of=77)
    answering(torch.cuda, device_count=1)
    for cached in caches:
        cached.cache_clear()
    yield made
    for cached in caches:
        cached.cache_clear()


def forward(variant="cuda:fma:r2:c1:b1", layer=None):
    x = torch.zeros(3, 5, 4)
    with selection.forced(variant), torch.no_grad():
        (layer or ours.LSTM(4, 64))(x)
    return x


def test_a_kernel_is_launched_with_the_tensors_of_the_layer_on_the_current_stream(fake):
    layer = ours.LSTM(4, 64)
    x = forward("cuda:fma:r2:c4:b1", layer)
    found = layout("lstm", 64, parse("cuda:fma:r2:c4:b1"), False, False, 4)
    ((*grid, stream, _, extra, given),) = fake.launched
    assert grid == [12, 1, 1, found.threads, 1, 1, found.shared_bytes]  # three groups of two rows, four blocks each
    assert (stream, extra) == (77, None)
    arguments = dict(
        zip((name for part in cuda_recurrence.WALK for name in part), struct.unpack("19Q5q4i", given), strict=True)
    )
    assert (arguments["steps"], arguments["batch"], arguments["x_step"], arguments["x_row"], arguments["y_row"]) == (
        3,
        5,
        20,
        4,
        64,
    )
    assert (arguments["x"], arguments["weight"], arguments["kept"]) == (x.data_ptr(), layer.weight_hh_l0.data_ptr(), 0)


def test_forward_and_backward_are_three_launches(fake):
    """Two walks and one kernel that sums their results; few features are multiplied inside the walks."""
    layer = ours.LSTM(4, 16)
    with selection.forced("cuda:fma:r2:c1:b1"):
        fake.contexts = [OURS]
        layer(torch.zeros(3, 5, 4))[0].sum().backward()
    assert len(fake.launched) == 3


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("before", [[], [OURS], [ANOTHER]])
def test_torchs_context_is_current_for_a_kernel_and_the_thread_is_left_as_it_was(fake, before, gpus, answering):
    """A second GPU has another context. A fresh autograd thread has none, and keeps the one of the only GPU."""
    answering(torch.cuda, device_count=gpus)
    fake.contexts = list(before)
    for _ in range(2):
        forward()
    assert len(fake.launched) == 2
    assert fake.calls.count("cuModuleLoadData") == 3  # forward, backward and sums
    assert fake.contexts == ([OURS] if gpus == 1 and not before else before)


def test_reports_the_resources_of_a_kernel_as_the_driver_states_them(fake):
    kernel = driver.Kernel(b"machine code", "rnn_forward", 2048, 0)
    assert kernel.resources(128) == {"shared_bytes": 2048, "registers": 40, "local_bytes": 30, "blocks_at_once": 3}


def test_driver_errors_name_the_failing_call(fake, answering):
    answering(driver, primary=ANOTHER)
    with pytest.raises(RuntimeError, match="CUDA error 201 in cuModuleLoadData: invalid device context"):
        forward()


@pytest.mark.parametrize(("name", "file"), [("Walk", "recurrence.cu"), ("Sums", "sums.cu")])
def test_arguments_are_packed_as_the_kernel_reads_them(name, file):
    """Pointers and long longs of 8 bytes, then an even number of ints of 4: nothing between them and nothing behind."""
    pointers, strides, numbers = getattr(cuda_recurrence, name.upper())
    size = 8 * len(pointers) + 8 * len(strides) + 4 * len(numbers)
    assert cuda_recurrence.packer(pointers, strides, numbers).size == size
    assert size % 8 == 0
    struct_ = (
        (cuda_recurrence.HERE / file).read_text(encoding="utf-8").partition(f"struct {name} {{")[2].partition("};")[0]
    )
    declared = re.sub(r"//.*", "", struct_)
    assert re.findall(r"(\w+)(?=[,;])", declared) == [*pointers, *strides, *numbers]
    assert re.findall(r"float\* (\w+);", declared) == pointers
