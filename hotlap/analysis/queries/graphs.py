"""Tells which values of an iteration carry a graph: those it differentiates, and outputs of models."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from hotlap.analysis.parse.terms import MODULE, TENSOR, UNKNOWN
from hotlap.analysis.parse.torch_names import CREATION
from hotlap.analysis.parse.tree import walk
from hotlap.analysis.queries.code import Code, Definition, Repeated, last_name
from hotlap.analysis.queries.evaluation import trains

_BACKWARD = ("backward", "manual_backward")
_WITHOUT = frozenset(
    "detach item tolist numpy argmax argmin argsort long int bool eq ne gt lt ge le sign round floor ceil size dim "
    "numel nonzero any all isnan isfinite detach_ state_dict keys".split()
)
_MADE = frozenset((*CREATION, "Tensor", "FloatTensor"))
_SECOND = frozenset(("max", "min", "topk", "sort", "median", "mode"))  # return values, and indices without a graph


class Graphs:
    """The values that carry a graph in one loop over batches, or in one function called every batch."""

    def __init__(self, code: Code, scope: Repeated | Definition) -> None:
        self.code, self.scope = code, scope
        self.differentiated = set(self._differentiated())
        self.trains = bool(self.differentiated)
        self.free = not self.trains and self._without_graph()

    def _without_graph(self) -> bool:
        if isinstance(self.scope, Definition):
            return True  # a framework calls it, under no_grad unless it trains
        return self.code.under_no_grad(self.scope) or trains(self.code, self.scope)

    def _differentiated(self) -> Iterator[str]:
        """Yield the names that a backward pass in this scope starts from."""
        for node in walk(self.scope):
            if (
                isinstance(node, ast.Call)
                and last_name(node.func) in _BACKWARD
                and isinstance(node.func, ast.Attribute)
            ):
                start = node.args[0] if node.args else node.func.value
                yield from (part.id for part in walk(start) if isinstance(part, ast.Name))
        if isinstance(self.scope, Definition) and self.scope.name == "training_step":
            yield from self._returned()

    def _returned(self) -> Iterator[str]:
        """Yield the loss that `training_step` returns, alone or in a dictionary; Lightning differentiates it."""
        for node in walk(self.scope):
            if not isinstance(node, ast.Return) or node.value is None:
                continue
            value = node.value
            made = self._last_made(value) if isinstance(value, ast.Name) else None
            if made is not None and isinstance(made[0].value, ast.Dict):
                value = made[0].value
            if isinstance(value, ast.Name):
                yield value.id
            elif isinstance(value, ast.Dict):
                for key, part in zip(value.keys, value.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "loss" and isinstance(part, ast.Name):
                        yield part.id

    def carries(self, node: ast.expr, deep: int = 0) -> bool:
        if self.free:
            return self._is_returned_loss(node)
        if deep > 12 or self._under_no_grad(node):
            return False
        if isinstance(node, ast.Name):
            return self._name(node, deep)
        if isinstance(node, ast.Call):
            return self._call(node, deep)
        if isinstance(node, ast.Attribute):
            return node.attr not in ("data", "shape", "ndim", "dtype", "device") and self.carries(node.value, deep + 1)
        if isinstance(node, ast.Subscript):
            return not self._is_index(node) and self.carries(node.value, deep + 1)
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return self.carries(node.elt, deep + 1)
        if isinstance(node, ast.BinOp | ast.IfExp | ast.Tuple | ast.List | ast.UnaryOp | ast.Dict):
            parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
            return any(self.carries(part, deep + 1) for part in parts)
        return False

    def _is_index(self, node: ast.Subscript) -> bool:
        """Match the indices in `x.max(1)[1]`."""
        second = isinstance(node.slice, ast.Constant) and node.slice.value == 1
        return second and isinstance(node.value, ast.Call) and last_name(node.value.func) in _SECOND

    def _name(self, node: ast.Name, deep: int) -> bool:
        made = self._last_made(node)
        if made is None:
            return node.id in self.differentiated and self.code.kind(node) == TENSOR
        statement, number = made
        value = statement.value
        assert value is not None
        if number == 1 and isinstance(value, ast.Call) and last_name(value.func) in _SECOND:
            return False
        if node.id in self.differentiated and not self._is_read(value):
            return True
        return self.carries(value, deep + 1)

    def _is_read(self, value: ast.expr) -> bool:
        """Match values without a graph: `loss.item()`, `loss.detach().cpu()`, or a newly created tensor."""
        while isinstance(value, ast.Call):
            name = self.code.full_name(value.func)
            if last_name(value.func) in _WITHOUT or (name.startswith("torch.") and name[6:] in _MADE):
                return True
            if not isinstance(value.func, ast.Attribute):
                return False
            value = value.func.value
        return False

    def _is_of_detached(self, call: ast.Call, deep: int) -> bool:
        """Match `criterion(output.detach(), target)`: a loss without parameters then records nothing."""
        detached = [argument for argument in call.args if self._is_read(argument)]
        return bool(detached) and not any(self.carries(argument, deep + 1) for argument in call.args)

    def _last_made(self, node: ast.Name) -> tuple[ast.Assign | ast.AnnAssign, int] | None:
        """Return the nearest assignment above, and the name's place in its tuple."""
        found: tuple[ast.Assign | ast.AnnAssign, int] | None = None
        for statement in walk(self.scope):
            if (
                not isinstance(statement, ast.Assign | ast.AnnAssign)
                or statement.value is None
                or statement.lineno >= node.lineno
            ):
                continue
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                names = [part.id if isinstance(part, ast.Name) else "" for part in parts]
                if node.id in names and (found is None or statement.lineno >= found[0].lineno):
                    found = statement, names.index(node.id)
        return found

    def _call(self, node: ast.Call, deep: int) -> bool:
        name = last_name(node.func)
        if name in _WITHOUT or self._is_read(node):
            return False
        if self.code.callee_kind(node) == MODULE:
            return not self._is_of_detached(node, deep)
        if self.code.full_name(node.func).startswith("torch."):
            return any(self.carries(argument, deep + 1) for argument in node.args)
        if isinstance(node.func, ast.Attribute) and self.code.kind(node.func.value) == TENSOR:
            return self.carries(node.func.value, deep + 1)
        return isinstance(node.func, ast.Attribute) and self.carries(node.func.value, deep + 1)

    def _is_returned_loss(self, node: ast.expr) -> bool:
        """Match what a function that trains returns, here or where the name was set."""
        if isinstance(self.scope, Definition):
            return False
        made = self._last_made(node) if isinstance(node, ast.Name) else None
        value, place = (made[0].value, made[1]) if made is not None else (node, 0)
        return isinstance(value, ast.Call) and self._gives_differentiated(value, place)

    def _gives_differentiated(self, node: ast.Call, place: int) -> bool:
        """Return whether the callee, in the same file, makes the backward pass and returns the loss undetached."""
        targets = self.code.project.targets(self.code.asked(node.func), self.code.path)
        lines = {self.code.project.function(target).line for target in targets if target.path == self.code.path}
        for function in self.code.nodes(ast.FunctionDef) if lines else ():
            assert isinstance(function, ast.FunctionDef)
            if function.lineno in lines and function is not self.scope:
                inner = Graphs(self.code, function)
                if inner.trains and any(inner.carries(value) for value in _returned_at(function, place)):
                    return True
        return False

    def _under_no_grad(self, node: ast.AST) -> bool:
        for outer in self.code.ancestors(node):
            if outer is self.scope:
                return False
            if isinstance(outer, ast.With) and any(self._is_no_grad(item.context_expr) for item in outer.items):
                return True
        return False

    def _is_no_grad(self, node: ast.expr) -> bool:
        name = self.code.full_name(node.func if isinstance(node, ast.Call) else node)
        return name in ("torch.no_grad", "torch.inference_mode")


def _returned_at(function: ast.FunctionDef, place: int) -> Iterator[ast.expr]:
    """Yield what a function returns at one place of a tuple, or alone."""
    for node in walk(function):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            yield from node.value.elts[place : place + 1]
        elif isinstance(node, ast.Return) and node.value is not None and place == 0:
            yield node.value


@lru_cache(maxsize=2)
def differentiated(code: Code) -> frozenset[tuple[ast.AST | None, str]]:
    """Return the names, and the attributes of objects, that a backward pass starts from. They are tensors on the
    device, whatever made them."""
    found: set[tuple[ast.AST | None, str]] = set()
    for call in code.calls(*_BACKWARD):
        if isinstance(call.func, ast.Attribute):
            start = call.args[0] if call.args else call.func.value
            if isinstance(start, ast.Call) and last_name(start.func) == "scale" and start.args:
                start = start.args[0]
            if isinstance(start, ast.Name):
                found.add((code.function(call), start.id))
            elif isinstance(start, ast.Attribute | ast.Subscript):
                found.add((None, ast.unparse(start)))
    return frozenset(found)


def is_tensor(code: Code, node: ast.expr, known: frozenset[tuple[ast.AST | None, str]]) -> bool:
    """Return whether a node is a tensor on the device, judged by what made it or by a later backward pass."""
    kind = code.kind(node)
    if isinstance(node, ast.Attribute | ast.Subscript) and kind != TENSOR:
        return any(scope is None for scope, _ in known) and (None, ast.unparse(node)) in known
    named = isinstance(node, ast.Name) and kind == UNKNOWN
    return kind == TENSOR or (named and (code.function(node), node.id) in known)  # type: ignore[attr-defined]
