"""Recurrences by Triton kernels, for GPUs where CUDA C++ cannot be compiled and for Triton's interpreter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotlap.kernels.recurrent.geometry import Variant
from hotlap.kernels.recurrent.recurrence import Recurrence

_device_of: Any = torch.cuda.device_of  # Triton launches on the current device, whatever it is given
HIDDEN_AT_MOST = 64  # four matrices of 64 × 64 are what one multiprocessor holds beside the rest


def _settings(variant: Variant, layer: Recurrence) -> dict[str, Any]:
    wide = max(16, 1 << (layer.hidden - 1).bit_length())
    return {
        "HIDDEN": layer.hidden, "WIDE": wide, "ROWS": variant.rows, "DOT": variant.product == "dot",
        "PRECISION": "ieee" if layer.exact else "tf32", "num_warps": variant.blocks, "num_stages": 1,
    }  # fmt: skip


def _common(layer: Recurrence) -> dict[str, Any]:
    dense = {"weight": layer.weight, "bias_ih": layer.bias_ih, "bias_hh": layer.bias_hh, "h0": layer.h0, "c0": layer.c0}
    made: dict[str, Any] = {name: None if tensor is None else tensor.contiguous() for name, tensor in dense.items()}
    return {**made, "gates": layer.gates, "steps": layer.steps, "batch": layer.batch, "reverse": int(layer.reverse)}


def _taken(kernel: Any, given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in kernel.arg_names or name.startswith("num_")}


def forward(variant: Variant, layer: Recurrence) -> None:
    from hotlap.kernels.recurrent import triton_kernels as kernels

    kernel = kernels.lstm_forward if layer.kind == "lstm" else kernels.gru_forward
    given = {
        **_common(layer), **_settings(variant, layer), "y": layer.y, "cells": layer.cells, "h_n": layer.h_n,
        "c_n": layer.c_n, "y_row": layer.y.stride(1), "gates_row": layer.gates.stride(1), "KEEP": layer.keep,
    }  # fmt: skip
    with _device_of(layer.gates):
        kernel[(-(-layer.batch // variant.rows),)](**_taken(kernel, given))


def backward(variant: Variant, layer: Recurrence) -> Tensor:
    from hotlap.kernels.recurrent import triton_kernels as kernels

    kernel = kernels.lstm_backward if layer.kind == "lstm" else kernels.gru_backward
    programs = -(-layer.batch // variant.rows)
    parts = layer.gates.new_empty(programs, 4 * layer.hidden)
    dy = layer.dy if layer.dy is None or layer.dy.stride(2) == 1 else layer.dy.contiguous()
    given = {
        **_common(layer), **_settings(variant, layer), "y": layer.y, "cells": layer.cells, "dbias": parts, "dy": dy,
        "dh_n": None if layer.dh_n is None else layer.dh_n.contiguous(), "dh0": layer.dh0, "dc0": layer.dc0,
        "dc_n": None if layer.dc_n is None else layer.dc_n.contiguous(), "y_row": layer.y.stride(1),
        "dy_step": 0 if dy is None else dy.stride(0), "dy_row": 0 if dy is None else dy.stride(1),
    }  # fmt: skip
    with _device_of(layer.gates):
        kernel[(programs,)](**_taken(kernel, given))
    return parts
