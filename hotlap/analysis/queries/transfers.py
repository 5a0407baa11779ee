"""Finds copies from the host to the device: `.to(device)` and `.cuda()`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.analysis.parse.terms import DEVICE, HOST_DEVICE, NUMBER, TENSORS, TEXT
from hotlap.analysis.queries.code import Code, keyword, last_name


def transfers(code: Code) -> Iterator[tuple[ast.Call, ast.expr, ast.expr | None]]:
    """Yield each call that moves something to a device, what it moves, and the device (None for `.cuda()`)."""
    for call in code.calls("to", "cuda"):
        if not isinstance(call.func, ast.Attribute):
            continue
        device = call.args[0] if call.args else keyword(call, "device")
        if call.func.attr == "cuda" or (device is not None and is_device(code, device)):
            yield call, call.func.value, device


def is_device(code: Code, node: ast.expr) -> bool:
    """Return whether a node is a device, judged by its kind, or by its name if the kind is unknown."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int) or (isinstance(node.value, str) and node.value != "cpu")
    kind = code.kind(node)
    if kind == DEVICE:
        return True
    if kind in TENSORS or kind == HOST_DEVICE or code.full_name(node).startswith("torch."):
        return False
    name = _written(node).lower()
    if kind in (NUMBER, TEXT):
        return "device" in name or "gpu" in name or "rank" in name or kind == TEXT
    return "device" in name or "gpu" in name or "rank" in name or name == "dev"


def _written(node: ast.expr) -> str:
    """Return the key of `params["device"]`, and the name of the container for `devices[0]`."""
    if not isinstance(node, ast.Subscript):
        return last_name(node)
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return key if isinstance(key, str) else _written(node.value)
