"""Finds activations that write to new memory although nothing else sees their input."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from hotlap.analysis.frequency.heat import Heat, Side
from hotlap.analysis.queries.code import Code, keyword, last_name
from hotlap.analysis.queries.rule import Found
from hotlap.records.scan_finding import Applicability, Confidence, Frequency, Step

WORDS = ("ReLU(",)
TESTS = False
SEVERITY = "low"
_ACTIVATIONS = frozenset(("torch.nn.ReLU", "torch.nn.LeakyReLU"))
_MAKERS = frozenset(  # layers that return new memory, which their own backward pass does not read
    "Linear Bilinear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d BatchNorm1d BatchNorm2d "
    "BatchNorm3d SyncBatchNorm".split()
)
# Whoever looks into a Sequential may keep what its layers give: hooks, slices, loops over layers, feature extractors.
_LOOKS_INSIDE = re.compile(r"forward_hook|create_feature_extractor|IntermediateLayerGetter|\.children\(|named_children")


def find(code: Code) -> Iterator[Found]:
    if not code.trains() or _LOOKS_INSIDE.search(code.text):
        return
    for made in code.calls("Sequential"):
        if code.full_name(made.func) != "torch.nn.Sequential" or _is_taken_apart(code, made):
            continue
        for before, layer in zip(made.args, made.args[1:], strict=False):
            if _is_new_memory(code, before) and isinstance(layer, ast.Call) and _is_out_of_place(code, layer):
                yield _found(code, layer)


def _is_new_memory(code: Code, layer: ast.expr) -> bool:
    name = code.full_name(layer.func) if isinstance(layer, ast.Call) else ""
    return name.startswith("torch.nn.") and name.rpartition(".")[2] in _MAKERS


def _is_out_of_place(code: Code, layer: ast.Call) -> bool:
    name = code.full_name(layer.func)
    given = keyword(layer, "inplace") is not None or len(layer.args) > name.endswith("LeakyReLU")
    return name in _ACTIVATIONS and not given


def _is_taken_apart(code: Code, made: ast.Call) -> bool:
    """Return whether the file indexes, slices or goes through the layers, or nobody can tell what it is called."""
    parent = code.parent(made)
    if isinstance(parent, ast.Return | ast.Call | ast.List | ast.Tuple | ast.ListComp | ast.GeneratorExp):
        return False
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    if not isinstance(target, ast.Name | ast.Attribute):
        return True
    name = last_name(target)
    looked = (node.value for node in code.nodes(ast.Subscript) if isinstance(node, ast.Subscript))
    gone_through = (node.iter for node in code.nodes(ast.For, ast.comprehension) if hasattr(node, "iter"))
    return any(
        last_name(part) == name
        for node in (*looked, *gone_through)
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.Attribute)
    )


def _found(code: Code, layer: ast.Call) -> Found:
    return Found(
        layer,
        f"`{ast.unparse(layer)}` writes to new memory, although nothing else sees its input",
        "let it overwrite its input: inplace=True",
        Applicability.UNSAFE,  # another file may slice the Sequential
        Heat(
            Frequency.BATCH,
            Confidence.MEDIUM,
            Side.TRAIN,
            (Step(code.path, layer.lineno, "runs in every forward pass"),),
        ),
    )
