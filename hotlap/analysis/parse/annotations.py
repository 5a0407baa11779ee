"""Reads what annotations say."""

from __future__ import annotations

import ast
from collections.abc import Callable

from hotlap.analysis.parse import torch_names
from hotlap.analysis.parse.calls import last_name
from hotlap.analysis.parse.terms import (
    DEVICE,
    FRAME,
    LOADER,
    MODULE,
    NUMBER,
    NUMPY,
    OPTIMIZER,
    SCALER,
    TENSOR,
    TEXT,
    UNKNOWN,
    Term,
)

_SHAPED = frozenset(  # of jaxtyping: Float[torch.Tensor, "batch features"]
    "Float Float16 Float32 Float64 BFloat16 Int Int8 Int16 Int32 Int64 UInt UInt8 Integer Bool Shaped Num Inexact "
    "Complex Real".split()
)


def annotated(node: ast.expr | None, plain: Callable[[ast.expr], Term]) -> Term:
    """Return what an annotation says: a kind where it is torch's, else the class it names."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except (SyntaxError, ValueError):
            return UNKNOWN
    if isinstance(node, ast.BinOp):
        return annotated(node.left, plain) or annotated(node.right, plain)
    if isinstance(node, ast.Subscript):
        return _generic(node, plain)
    if not isinstance(node, ast.Name | ast.Attribute):
        return UNKNOWN
    return of_name(plain(node))


def _generic(node: ast.Subscript, plain: Callable[[ast.expr], Term]) -> Term:
    outer = last_name(node.value)
    if outer in ("Optional", "Annotated", "Union", "Final") or outer in _SHAPED:
        inner = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        return annotated(inner, plain)
    if outer in ("list", "List", "Sequence", "Iterable", "Iterator", "tuple", "Tuple", "dict", "Dict", "Mapping"):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not parts:  # tuple[()]
            return UNKNOWN
        keyed = outer in ("dict", "Dict", "Mapping")
        inner_kind = annotated(parts[-1] if keyed else parts[0], plain)
        return ("dict" if keyed else "list", inner_kind) if inner_kind else UNKNOWN
    return annotated(node.value, plain)


def of_name(term: Term) -> Term:
    """Return what a name means as an annotation."""
    if not isinstance(term, tuple) or term[0] != "name":
        return ("call", term) if isinstance(term, tuple) and term[0] == "def" else UNKNOWN
    name = term[1]
    if name in ("typing.Any", "object", "dict", "list", "tuple", "set"):  # the callers tell of what
        return UNKNOWN
    if name in ("torch.Tensor", "torch.FloatTensor", "torch.LongTensor", "torch.BoolTensor", "torchtyping.TensorType"):
        return TENSOR
    if name in ("int", "float", "bool", "complex"):
        return NUMBER
    if name == "str":
        return TEXT
    if name in ("torch.device", "torch.nn.Module", "numpy.ndarray", "pandas.DataFrame", "torch.optim.Optimizer"):
        return _ANNOTATED[name]
    known = torch_names.called(name, [], {})
    return known if isinstance(known, str) and known in (LOADER, SCALER) else ("call", term)


_ANNOTATED: dict[str, Term] = {
    "torch.device": DEVICE,
    "torch.nn.Module": MODULE,
    "numpy.ndarray": NUMPY,
    "pandas.DataFrame": FRAME,
    "torch.optim.Optimizer": OPTIMIZER,
}
