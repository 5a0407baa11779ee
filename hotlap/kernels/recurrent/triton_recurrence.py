"""Walks by Triton kernels: where a GPU is there but CUDA C++ cannot be compiled, and in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.recurrent.geometry import Variant
from hotlap.kernels.recurrent.recurrence import Walk

_device_of: Any = torch.cuda.device_of  # Triton launches on the current device, whatever it is given
HIDDEN_AT_MOST = 64  # four matrices of 64 × 64 are what one multiprocessor holds beside the rest


def _settings(variant: Variant, walk: Walk) -> dict[str, Any]:
    wide = max(16, 1 << (walk.hidden - 1).bit_length())
    return {
        "HIDDEN": walk.hidden, "WIDE": wide, "ROWS": variant.rows, "DOT": variant.product == "dot",
        "PRECISION": "ieee" if walk.exact else "tf32", "num_warps": variant.blocks, "num_stages": 1,
    }  # fmt: skip


def _common(walk: Walk) -> dict[str, Any]:
    dense = {"weight": walk.weight, "bias_ih": walk.bias_ih, "bias_hh": walk.bias_hh, "h0": walk.h0, "c0": walk.c0}
    made: dict[str, Any] = {name: None if one is None else one.contiguous() for name, one in dense.items()}
    return {**made, "gates": walk.gates, "steps": walk.steps, "batch": walk.batch, "reverse": int(walk.reverse)}


def _taken(kernel: Any, given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in kernel.arg_names or name.startswith("num_")}


def forward(variant: Variant, walk: Walk) -> None:
    from hotlap.kernels.recurrent import triton_kernels as kernels

    kernel = kernels.lstm_forward if walk.kind == "lstm" else kernels.gru_forward
    given = {
        **_common(walk), **_settings(variant, walk), "y": walk.y, "cells": walk.cells, "h_n": walk.h_n,
        "c_n": walk.c_n, "y_row": walk.y.stride(1), "gates_row": walk.gates.stride(1), "KEEP": walk.keep,
    }  # fmt: skip
    with _device_of(walk.gates):
        kernel[(-(-walk.batch // variant.rows),)](**_taken(kernel, given))


def backward(variant: Variant, walk: Walk) -> Tensor:
    from hotlap.kernels.recurrent import triton_kernels as kernels

    kernel = kernels.lstm_backward if walk.kind == "lstm" else kernels.gru_backward
    programs = -(-walk.batch // variant.rows)
    parts = walk.gates.new_empty(programs, 4 * walk.hidden)
    dy = walk.dy if walk.dy is None or walk.dy.stride(2) == 1 else walk.dy.contiguous()
    given = {
        **_common(walk), **_settings(variant, walk), "y": walk.y, "cells": walk.cells, "dbias": parts, "dy": dy,
        "dh_n": None if walk.dh_n is None else walk.dh_n.contiguous(), "dh0": walk.dh0, "dc0": walk.dc0,
        "dc_n": None if walk.dc_n is None else walk.dc_n.contiguous(), "y_row": walk.y.stride(1),
        "dy_step": 0 if dy is None else dy.stride(0), "dy_row": 0 if dy is None else dy.stride(1),
    }  # fmt: skip
    with _device_of(walk.gates):
        kernel[(programs,)](**_taken(kernel, given))
    return parts
