"""Reads datasets whose items are rows of tensors: TensorDataset, subsets of it, and classes written like it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from hotlap.loading.purity.genuine import genuine_of
from hotlap.runtime.decline import no_effect


class Source:
    """`batch(keys)` returns what default_collate makes of the items with these keys, or raises."""

    def __init__(self, torch: Any, dataset: Any, subsets: list[Any], shape: Any) -> None:
        self._torch, self._dataset, self._subsets, self._shape = torch, dataset, subsets, shape

    def batch(self, keys: list[Any]) -> Any:
        for subset in self._subsets:
            indices = subset.indices
            keys = [indices[key] for key in keys]
        rows = self._torch.tensor(keys)
        if rows.dtype is not self._torch.int64 or rows.dim() != 1:
            raise TypeError("keys that are not integers")
        return self._fill(self._shape, _Rows(self._torch, rows))

    def _fill(self, shape: Any, rows: _Rows) -> Any:
        if shape is None:
            return [rows.of(tensor) for tensor in self._dataset.tensors]
        if isinstance(shape, str):
            return rows.of(getattr(self._dataset, shape))
        if isinstance(shape, dict):
            return {key: self._fill(value, rows) for key, value in shape.items()}
        return [self._fill(child, rows) for child in shape]


class _Rows:
    """The same row numbers for several tensors, sent to each device once."""

    def __init__(self, torch: Any, rows: Any) -> None:
        self._torch, self._rows = torch, rows
        self._there: dict[Any, Any] = {}

    def of(self, tensor: Any) -> Any:
        why = unusable(self._torch, tensor)
        if why is not None:
            raise TypeError(why)
        if tensor.device.type == "cpu":
            return tensor.index_select(0, self._rows)
        return tensor.index_select(0, self._on(tensor.device, len(tensor)))

    def _on(self, device: Any, length: int) -> Any:
        """Return the row numbers on a device. They are checked on the host, since a device-side assert is permanent,
        and pinned, so that the host does not wait for the copy.
        """
        low, high = self._rows.aminmax()
        if int(low) < 0 or int(high) >= length:
            raise IndexError("a key outside the tensor")
        if device not in self._there:
            self._there[device] = self._rows.pin_memory().to(device, non_blocking=True)
        return self._there[device]


def unusable(torch: Any, tensor: Any) -> str | None:
    if type(tensor) is not torch.Tensor:
        return f"of {type(tensor).__name__}, not of tensors"
    if tensor.requires_grad:
        return "of tensors with gradients"
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.dim() == 0:
        return "of tensors that are not plain"
    return None if tensor.device.type in ("cpu", "cuda") else f"of tensors on {tensor.device.type}"


def source_of(torch: Any, dataset: Any) -> Source:
    data = torch.utils.data
    name, subsets = type(dataset).__name__, []
    while type(dataset) is data.Subset:
        subsets.append(dataset)
        dataset = dataset.dataset
    if callable(getattr(dataset, "__getitems__", None)):
        raise no_effect(f"torch already fetches {name} in whole batches")
    usual = type(dataset) is data.TensorDataset and genuine_of("torch", data.TensorDataset.__getitem__)
    if usual and not callable(vars(dataset).get("__getitem__")):
        shape, tensors = None, list(dataset.tensors)
    else:
        shape = shape_of(type(dataset))
        if shape is None:
            raise no_effect(f"the items of {name} are not known to be rows of tensors")
        tensors = [getattr(dataset, attribute, None) for attribute in _attributes(shape)]
    for tensor in tensors:
        why = unusable(torch, tensor)
        if why is not None:
            raise no_effect(f"{name} is made {why}")
    return Source(torch, dataset, subsets, shape)


def _attributes(shape: Any) -> list[str]:
    if isinstance(shape, str):
        return [shape]
    return [name for child in (shape.values() if isinstance(shape, dict) else shape) for name in _attributes(child)]


def shape_of(kind: type) -> Any:
    """Return ["a", "b"] for a class whose __getitem__(self, i) is only `return self.a[i], self.b[i]`, else None."""
    function = getattr(kind, "__getitem__", None)
    if hasattr(function, "__wrapped__"):  # decorated: the source would be that of the wrapped function
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))  # type: ignore[arg-type]
    except (OSError, TypeError, SyntaxError):
        return None
    (definition,) = tree.body if len(tree.body) == 1 else (None,)
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list or len(definition.args.args) != 2:
        return None
    body = [statement for statement in definition.body if not _is_docstring(statement)]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
        return None
    me, key = (argument.arg for argument in definition.args.args)
    return _shape(body[0].value, me, key)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _shape(value: ast.expr, me: str, key: str) -> Any:
    if isinstance(value, ast.Tuple | ast.List):
        return _all([_shape(element, me, key) for element in value.elts])
    if isinstance(value, ast.Dict):
        names = [name.value if isinstance(name, ast.Constant) else None for name in value.keys]
        shapes = _all([_shape(element, me, key) for element in value.values])
        return (
            dict(zip(names, shapes, strict=True)) if shapes and all(isinstance(name, str) for name in names) else None
        )
    if not isinstance(value, ast.Subscript) or not isinstance(value.value, ast.Attribute):
        return None
    owner, index = value.value.value, value.slice
    mine = isinstance(owner, ast.Name) and owner.id == me
    return value.value.attr if mine and isinstance(index, ast.Name) and index.id == key else None


def _all(shapes: list[Any]) -> list[Any] | None:
    return shapes if shapes and all(shape is not None for shape in shapes) else None
