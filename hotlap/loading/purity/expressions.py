"""What expressions yield."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from types import CodeType
from typing import Any

from hotlap.loading.purity.calls import Calls
from hotlap.loading.purity.comparisons import comparison
from hotlap.loading.purity.created import Closure, Super
from hotlap.loading.purity.frames import Frame, Names, with_parents
from hotlap.loading.purity.lookups import FORM
from hotlap.loading.purity.plain import is_record
from hotlap.loading.purity.questions import beginning_of, need_plain
from hotlap.loading.purity.source import Definition
from hotlap.loading.purity.study import Impure
from hotlap.loading.purity.values import NOTHING, UNKNOWN, Value, alias, container, either, fresh, sequence


class Expressions(Calls):
    def evaluate(self, node: ast.expr) -> Value:
        read = getattr(self, f"_{type(node).__name__}", None)
        if read is None:
            raise Impure(f"has an expression that is not supported ({type(node).__name__.lower()})")
        value: Value = read(node)
        return value

    def _Constant(self, node: ast.Constant) -> Value:
        if isinstance(node.value, str):
            self.study.texts.add(node.value)
        return Value(plain=True, known=node.value)

    def _Name(self, node: ast.Name) -> Value:
        frame: Frame | None = self.frame
        while frame is not None:
            if node.id in frame.names:
                return frame.names[node.id]
            frame = frame.parent
        function = self.frame.function
        if node.id in self.frame.cells:
            return self.objects.cell(self.frame.cells[node.id])
        if node.id in function.__globals__:
            return self.objects.name_in(function.__globals__, node.id)
        inside = function.__globals__.get("__builtins__", {})
        names = inside if isinstance(inside, dict) else vars(inside)
        if node.id in names:
            self.study.names[id(function.__globals__), node.id] = function.__globals__, node.id  # it may be added there
            self.study.names[id(names), node.id] = names, node.id
            return self.objects.value_of(names[node.id])
        if node.id in function.__code__.co_varnames or node.id in function.__code__.co_cellvars:
            return NOTHING  # not set on this path
        raise Impure(f"uses the name {node.id}, which is not defined yet")

    def _JoinedStr(self, node: ast.JoinedStr) -> Value:
        pieces = [self._plainly(piece) for piece in node.values]
        if all(isinstance(piece.known, str) for piece in pieces):
            return self.computed("".join(piece.known for piece in pieces))
        return replace(fresh(*pieces), begins=beginning_of(pieces[0]) or None)

    def _FormattedValue(self, node: ast.FormattedValue) -> Value:
        if node.format_spec is not None:
            self.evaluate(node.format_spec)
        value = self._plainly(node.value)
        if node.format_spec is not None or node.conversion != -1:
            return fresh(value)
        return value if type(value.known) is str else replace(fresh(value), begins=beginning_of(value))

    def _plainly(self, node: ast.expr) -> Value:
        value = self.evaluate(node)
        need_plain(value)
        return value

    def _several(self, node: ast.Tuple | ast.List) -> Value:
        if any(isinstance(element, ast.Starred) for element in node.elts):
            values = [
                self.iterated(self.evaluate(element.value))
                if isinstance(element, ast.Starred)
                else self.evaluate(element)
                for element in node.elts
            ]
            return container(either(values))
        return sequence(self.evaluate(element) for element in node.elts)

    _Tuple = _List = _several

    def _Set(self, node: ast.Set) -> Value:
        return container(either(self._plainly(element) for element in node.elts))

    def _Dict(self, node: ast.Dict) -> Value:
        for key in node.keys:
            if key is not None:
                self._plainly(key)
        values = [
            self.evaluate(value) if key is not None else self.values_of_mapping(self.evaluate(value))
            for key, value in zip(node.keys, node.values, strict=True)
        ]
        return container(either(values)) if values else fresh()

    def _Attribute(self, node: ast.Attribute) -> Value:
        loaded = len(self.study.loads)
        owner = self.evaluate(node.value)
        if _is_direct(node.value) and (node.attr in FORM or is_record(type(owner.known))):
            self.study.looked_up(owner, loaded)
        return self.load_attribute(owner, self.mangled(node.attr))

    def mangled(self, name: str) -> str:
        """Return a private name as Python mangles it inside a class."""
        if not name.startswith("__") or name.endswith("__"):
            return name
        names = set(_names_in(self.frame.function.__code__))
        found = {
            candidate
            for candidate in names
            if candidate[0] == "_" and candidate[1:2] != "_" and candidate.endswith(name)
        }
        if len(found) > 1 or (found and name in names):
            raise Impure(f"uses the private name {name} in several ways")
        return found.pop() if found else name

    def _Subscript(self, node: ast.Subscript) -> Value:
        loaded = len(self.study.loads)
        owner, key = self.evaluate(node.value), self.evaluate(node.slice)
        by_row = key.item or _is_of_items(node.slice, key)
        if _is_direct(node.value) and (by_row or _has_at(owner.known, key.known)):
            self.study.looked_up(owner, loaded, by_row)
            if not by_row:
                self.study.by_key.add(id(owner.known))
        return self.subscript(owner, key)

    def _Slice(self, node: ast.Slice) -> Value:
        parts = [self._plainly(bound) for bound in (node.lower, node.upper, node.step) if bound is not None]
        return fresh(*parts)

    def _Starred(self, node: ast.Starred) -> Value:
        return self.evaluate(node.value)

    # Calls

    def _Call(self, node: ast.Call) -> Value:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return self._super()
        loaded = len(self.study.loads)
        args, kwargs = self._arguments(node)
        if isinstance(node.func, ast.Attribute):
            loaded = len(self.study.loads)
            owner = self.evaluate(node.func.value)
            if node.func.attr in FORM and _is_direct(node.func.value):
                self.study.looked_up(owner, loaded)
            return self.call_method(owner, self.mangled(node.func.attr), args, kwargs, node.func.value)
        callee = self.evaluate(node.func)
        if callee.objects == (len,) and len(args) == 1 and _is_direct(node.args[0]):
            self.study.looked_up(args[0], loaded)
        return self.call_value(callee, args, kwargs)

    def _arguments(self, node: ast.Call) -> tuple[list[Value], Names]:
        args: list[Value] = []
        for argument in node.args:
            value = self.evaluate(argument)
            if not isinstance(argument, ast.Starred):
                args.append(value)
            elif value.items is not None:
                args.extend(value.items)
            elif type(value.known) in (list, tuple):
                args.extend(map(self.objects.value_of, value.known))
            else:
                args.append(replace(self.iterated(value), known=UNKNOWN, spread=True))
        kwargs: Names = {}
        for keyword in node.keywords:
            if keyword.arg is not None:
                kwargs[keyword.arg] = self.evaluate(keyword.value)
            else:
                kwargs.update(self._spread(keyword.value))
        return args, kwargs

    def _spread(self, node: ast.expr) -> Names:
        given = self.frame.names.get(f"**{node.id}") if isinstance(node, ast.Name) else None
        if given is not None:
            return dict(given.made[0].given)
        value = self.evaluate(node)
        if type(value.known) is dict and all(type(key) is str for key in value.known):
            self.study.containers[id(value.known)] = value.known
            return {key: self.objects.value_of(element) for key, element in value.known.items()}
        raise Impure("calls a function with ** of a value that is not known")

    def _super(self) -> Value:
        frame = self.frame
        if "__class__" not in frame.cells:
            raise Impure("uses super() where its class is not known")
        first = frame.definition.args.args[0].arg
        return Value(made=(Super(frame.cells["__class__"].cell_contents, frame.names[first]),))

    # Operators

    def _BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        need_plain(left, right)
        if isinstance(node.op, ast.MatMult):
            self.study.ordered = True
        if isinstance(left.known, str | PurePath) and isinstance(right.known, str | PurePath):
            if isinstance(node.op, ast.Add) and isinstance(left.known, str) and isinstance(right.known, str):
                return self.computed(left.known + right.known)
            if isinstance(node.op, ast.Div) and isinstance(left.known, PurePath):
                return self.computed(left.known / right.known)
        array = left.array or right.array
        return replace(
            fresh(left, right, array=array),
            deep=array or (left.deep and right.deep),
            number=True,
            begins=_beginning_of_result(node.op, left),
        )

    def _UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return fresh(value) if truth is None else Value(plain=True, known=not truth)
        need_plain(value)
        if isinstance(node.op, ast.USub) and type(value.known) in (int, float):
            return Value(plain=True, known=-value.known)
        if isinstance(node.op, ast.UAdd):
            return alias(value)  # +tensor is the tensor itself
        return replace(fresh(value, array=value.array), number=True)

    def _BoolOp(self, node: ast.BoolOp) -> Value:
        found: list[Value] = []
        with self.perhaps():
            for operand in node.values:
                value = self.evaluate(operand)
                truth = self.truth(value)
                if truth is not None and truth is isinstance(node.op, ast.Or):
                    return either([*found, value])
                found.append(value)
        return found[-1] if all(self._decided(earlier, node.op) for earlier in found[:-1]) else either(found)

    def _decided(self, value: Value, op: ast.boolop) -> bool:
        return self.truth(value) is isinstance(op, ast.And)

    def _IfExp(self, node: ast.IfExp) -> Value:
        truth = self.truth(self.evaluate(node.test))
        if truth is not None:
            return self.evaluate(node.body if truth else node.orelse)
        with self.perhaps():
            return either([self.evaluate(node.body), self.evaluate(node.orelse)])

    def _Compare(self, node: ast.Compare) -> Value:
        return comparison(node.ops, [self.evaluate(operand) for operand in (node.left, *node.comparators)])

    def _NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.assign(node.target, value)
        return value

    # Functions and comprehensions

    def _Lambda(self, node: ast.Lambda) -> Value:
        return self.closure(node)

    def closure(self, node: Definition) -> Value:
        defaults = [self.evaluate(default) for default in node.args.defaults]
        by_name = {
            parameter.arg: self.evaluate(default)
            for parameter, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            if default is not None
        }
        for frame in with_parents(self.frame):
            frame.captured = True
        return Value(made=(Closure(node, self.frame, (defaults, by_name)),))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        return container(self._inside(node.generators, [node.elt])[0])

    _ListComp = _SetComp = _comprehension

    def _GeneratorExp(self, node: ast.GeneratorExp) -> Value:
        return replace(self._comprehension(node), lazy=True)

    def _DictComp(self, node: ast.DictComp) -> Value:
        key, value = self._inside(node.generators, [node.key, node.value])
        need_plain(key)
        return container(value)

    def _inside(self, generators: Sequence[ast.comprehension], wanted: Sequence[ast.expr]) -> list[Value]:
        """Read a comprehension in rounds, as a loop, since each round may see the changes of the last."""
        inner = {
            node.id for generator in generators for node in ast.walk(generator.target) if isinstance(node, ast.Name)
        }
        for name in inner & self.frame.names.keys():
            self.frame.names[f"{name} outside"] = self.frame.names.pop(name)

        def once() -> Value:
            try:
                return sequence(self._elements(generators, wanted))
            finally:
                for name in inner:
                    self.frame.names.pop(name, None)

        try:
            found = self.repeated(once)
        finally:
            for name in inner:
                if f"{name} outside" in self.frame.names:
                    self.frame.names[name] = self.frame.names.pop(f"{name} outside")
        return list(found.items or ())

    def _elements(self, generators: Sequence[ast.comprehension], wanted: Sequence[ast.expr]) -> list[Value]:
        for generator in generators:
            self.assign(generator.target, self.iterated(self.evaluate(generator.iter)))
            for condition in generator.ifs:
                if self.truth(self.evaluate(condition)) is False:
                    return [NOTHING for _ in wanted]
        return [self.evaluate(expression) for expression in wanted]


def _is_direct(node: ast.expr) -> bool:
    """Return whether the value looked up here is used nowhere else in the call."""
    return isinstance(node, ast.Attribute | ast.Subscript | ast.Name) and not any(
        isinstance(child, ast.NamedExpr) for child in ast.walk(node)
    )


def _is_of_items(node: ast.expr, key: Value) -> bool:
    """Return whether a key with several parts reads rows that are fetched: x[i, 0], or x[several items at once]."""
    if isinstance(node, ast.Tuple) and key.items:
        return key.items[0].item
    parts = list(key.parts())
    return bool(parts) and all(part.item for part in parts)


def _has_at(container: Any, key: Any) -> bool:
    """Return whether a container has an element under a known key, which is then read as a separate value."""
    if key is UNKNOWN or type(container) not in (list, tuple, dict):
        return False
    if isinstance(container, dict):
        return isinstance(key, int | str) and key in container
    return isinstance(key, int) and -len(container) <= key < len(container)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _beginning_of_result(op: ast.operator, left: Value) -> str | None:
    """Return how a path begins that is joined by an operator; what is added to a stored text is not known."""
    if not isinstance(op, ast.Add | ast.Div | ast.Mod):
        return None
    begins = beginning_of(left) or None
    return begins.partition("%")[0] or None if begins is not None and isinstance(op, ast.Mod) else begins
