"""Walks by the kernels of kernels.cu, compiled at run time for the layer's shape."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotlap.engine.nn import nvrtc
from hotlap.engine.nn.driver import Kernel
from hotlap.engine.nn.geometry import Layout, Variant, layout
from hotlap.engine.nn.walk import Walk

DEVICE = Path(__file__).with_name("device.cu")
SOURCE = Path(__file__).with_name("kernels.cu")
POINTERS = "gates weight bias_ih bias_hh h0 c0 y cells h_n c_n dy dh_n dc_n dh0 dc0 dbias".split()
NAMES = {False: "rnn_forward", True: "rnn_backward"}


class Arguments(ctypes.Structure):
    """`struct Walk` of kernels.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_longlong) for name in ("gates_row", "y_row", "dy_step", "dy_row")),
        *((name, ctypes.c_int) for name in ("steps", "batch", "reverse", "keep")),
    )


def arguments(walk: Walk, dbias: Tensor | None) -> tuple[Arguments, list[Tensor]]:
    """What the kernel is given, and the tensors that must live until it was launched."""
    alive: list[Tensor] = []

    def dense(tensor: Tensor | None) -> Tensor | None:
        return tensor if tensor is None or tensor.is_contiguous() else tensor.contiguous()

    tensors: dict[str, Tensor | None] = {
        "gates": walk.gates, "weight": dense(walk.weight), "bias_ih": dense(walk.bias_ih),
        "bias_hh": dense(walk.bias_hh), "h0": dense(walk.h0), "c0": dense(walk.c0), "y": walk.y, "cells": walk.cells,
        "h_n": walk.h_n, "c_n": walk.c_n,
        "dy": walk.dy if walk.dy is None or walk.dy.stride(2) == 1 else dense(walk.dy),
        "dh_n": dense(walk.dh_n), "dc_n": dense(walk.dc_n), "dh0": walk.dh0, "dc0": walk.dc0, "dbias": dbias,
    }  # fmt: skip
    rows = {"gates_row": walk.gates.stride(1), "y_row": walk.y.stride(1)}
    made = Arguments(steps=walk.steps, batch=walk.batch, reverse=walk.reverse, keep=walk.keep, **rows)
    for name, tensor in tensors.items():
        if tensor is not None:
            setattr(made, name, tensor.data_ptr())
            alive.append(tensor)
    dy = tensors["dy"]
    if dy is not None:
        made.dy_step, made.dy_row = dy.stride(0), dy.stride(1)
    return made, alive


def needed(variant: Variant, walk: Walk, backward: bool) -> Layout:
    found = layout(walk.kind, walk.hidden, variant, backward, walk.exact)
    if found is None:
        raise ValueError(f"{variant} cannot hold the weights of a {walk.kind} with {walk.hidden} hidden units")
    return found


def launch(variant: Variant, walk: Walk, backward: bool) -> Tensor:
    """Starts it on the current stream. Backward returns the parts of the biases' gradients."""
    found = needed(variant, walk, backward)
    clusters = found.clusters(walk.batch)
    parts = walk.gates.new_empty(clusters if backward else 0, 4 * walk.hidden)
    given, _alive = arguments(walk, parts if backward else None)
    device = walk.gates.device.index
    kernel(found, device).launch(
        clusters * variant.cluster, found.threads, torch.cuda.current_stream(device).cuda_stream, given
    )
    return parts


@cache
def kernel(found: Layout, device: int) -> Kernel:
    """Compiled and loaded; once per process and device."""
    return Kernel(binary(found, device), NAMES[found.backward], found.shared_bytes, device)


def binary(found: Layout, device: int) -> bytes:
    return nvrtc.compiled(source(), found.defines, nvrtc.architecture(device))


@cache
def source() -> str:
    return DEVICE.read_text(encoding="utf-8") + SOURCE.read_text(encoding="utf-8")


def is_ready(variant: Variant, kind: str, hidden: int, exact: bool, device: int) -> bool:
    """Whether its kernels are loaded, so that a graph can be captured with them."""
    return all(
        (found := layout(kind, hidden, variant, backward, exact)) is not None and (found, device) in _loaded
        for backward in (False, True)
    )


_loaded: set[tuple[Layout, int]] = set()


def load(variant: Variant, kind: str, hidden: int, exact: bool, device: int) -> Any:
    for backward in (False, True):
        found = layout(kind, hidden, variant, backward, exact)
        if found is not None:
            kernel(found, device)
            _loaded.add((found, device))
