"""What each expression of a function may be, in one pass from top to bottom. Statements are in flow.py."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, cast

from hotlap.source import guards, torch_names
from hotlap.source.calls import (
    BACKWARDS,
    OF_MODULES,
    all_on_host,
    container_method,
    given_by,
    is_library,
    is_on_device,
    mark_module,
    mark_moving,
    mark_use,
    may_be_function,
    may_be_model,
    method_of_unknown,
    named_result,
    prepared,
    put,
    runs_module,
    to_host,
    updates,
)
from hotlap.source.facts import Call, Function, Loop, Stack
from hotlap.source.reader import Reader
from hotlap.source.terms import (
    MODULE,
    NUMBER,
    NUMPY,
    OPTIMIZER,
    TENSOR,
    TENSORS,
    TEXT,
    UNKNOWN,
    Term,
    depth,
    element,
    indexed,
    join,
    unpacked,
)


class Expressions:
    """The state of reading one function. `keep` holds the term of every expression when a rule will ask for it."""

    def __init__(
        self, reader: Reader, function: Function, environment: dict[str, Term], outer: Expressions | None
    ) -> None:
        self.reader = reader
        self.function = function
        self.names = environment
        self.outer = outer
        self.stack: Stack = ()
        self.counters: set[str] = set()
        self.rare_names: set[str] = set()
        self.no_grad = function.no_grad
        self.loop_names: dict[str, int] = {}  # what a loop gives, and which loop

    # Names and constants

    def term(self, node: ast.expr) -> Term:
        handler = _HANDLERS.get(node.__class__)
        result = handler(self, node) if handler else self._anything(node)
        keep = self.reader.keep
        if keep is not None:
            keep[node] = result
        return result

    def lookup(self, name: str) -> Term:
        scope: Expressions | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return self.reader.lookup(name)

    def _name(self, node: ast.Name) -> Term:
        return self.lookup(node.id)

    def _constant(self, node: ast.Constant) -> Term:
        return TEXT if isinstance(node.value, str) else NUMBER if isinstance(node.value, int | float) else UNKNOWN

    def _anything(self, node: ast.expr) -> Term:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.term(child)
        return UNKNOWN

    def _attribute(self, node: ast.Attribute) -> Term:
        base = self.term(node.value)
        return self.attribute_of(base, node.attr)

    def attribute_of(self, base: Term, name: str) -> Term:
        if isinstance(base, str):
            if not base:
                return UNKNOWN
            return torch_names.attribute(base, name)
        if base[0] == "name":
            return ("name", f"{base[1]}.{name}")
        if base[0] in ("list", "dict") or depth(base) > 7:
            return UNKNOWN
        return ("attr", base, name)

    # Operations

    def _binary(self, node: ast.BinOp) -> Term:
        left, right = self.term(node.left), self.term(node.right)
        if left == TEXT:
            return TEXT
        return join(left, right)

    def _unary(self, node: ast.UnaryOp) -> Term:
        term = self.term(node.operand)
        return NUMBER if isinstance(node.op, ast.Not) else term

    def _boolean(self, node: ast.BoolOp) -> Term:
        result: Term = UNKNOWN
        before = self.stack
        for value in node.values:
            result = join(result, self.term(value))
            if isinstance(node.op, ast.And):
                rare, _ = guards.of_test(value, self.counters, self.rare_names)
                if rare:
                    self.stack = (*self.stack, rare)
        self.stack = before
        return result

    def _compare(self, node: ast.Compare) -> Term:
        result = self.term(node.left)
        for operator, other in zip(node.ops, node.comparators, strict=True):
            term = self.term(other)
            plain = isinstance(operator, _IDENTITY) or TEXT in (result, term)  # a tensor is never compared with a text
            result = NUMBER if plain else join(result, term)
        if isinstance(result, str):
            return result if result in TENSORS or result == NUMPY else NUMBER
        return result

    def _choice(self, node: ast.IfExp) -> Term:
        self.term(node.test)
        before, (body, other) = self.stack, guards.guards(node, self.counters, self.rare_names)
        self.stack = (*before, body) if body else before
        one = self.term(node.body)
        self.stack = (*before, other) if other else before
        result = join(one, self.term(node.orelse))
        self.stack = before
        return result

    def _subscript(self, node: ast.Subscript) -> Term:
        base = self.term(node.value)
        index = self.term(node.slice)
        if isinstance(base, tuple) and base[0] == "tuple" and isinstance(node.slice, ast.Constant):
            number = node.slice.value
            if isinstance(number, int) and 0 <= number < len(base) - 1:
                return cast(Term, base[number + 1])
        if isinstance(node.slice, ast.Slice) and not isinstance(base, str):
            return base
        if base == TEXT or (base in TENSORS and index == UNKNOWN and isinstance(node.slice, ast.Constant)):
            return base
        return indexed(base)

    def _slice(self, node: ast.Slice) -> Term:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.term(part)
        return NUMBER

    def _sequence(self, node: ast.List | ast.Set | ast.Tuple) -> Term:
        parts = [self.term(part) for part in node.elts]
        if isinstance(node, ast.Tuple):
            return ("tuple", *parts) if len(parts) <= 12 else UNKNOWN
        result: Term = UNKNOWN
        for part in parts:
            result = join(result, part)
        return ("list", result if depth(result) < 8 else UNKNOWN)

    def _dict(self, node: ast.Dict) -> Term:
        result: Term = UNKNOWN
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                self.term(key)
            term = self.term(value)
            result = join(result, term if key is not None else indexed(term))
        return ("dict", result if depth(result) < 8 else UNKNOWN)

    def _text(self, node: ast.JoinedStr) -> Term:
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.term(value.value)
        return TEXT

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Term:
        before = self._enter_comprehension(node.generators)
        result = self.term(node.elt)
        self.stack = before
        return ("list", result if depth(result) < 8 else UNKNOWN)

    def _dict_comprehension(self, node: ast.DictComp) -> Term:
        before = self._enter_comprehension(node.generators)
        self.term(node.key)
        result = self.term(node.value)
        self.stack = before
        return ("dict", result if depth(result) < 8 else UNKNOWN)

    def _enter_comprehension(self, generators: list[ast.comprehension]) -> Stack:
        before = self.stack
        for part in generators:
            over = self.term(part.iter)
            self.enter_loop(part.iter, over, comprehension=True)
            self.assign(part.target, element(over), given_by(part.iter, self.loop_names))
            for condition in part.ifs:
                self.term(condition)
        return before

    def _lambda(self, node: ast.Lambda) -> Term:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.term(default)
        return self.reader.define_lambda(node, self)

    def _starred(self, node: ast.Starred) -> Term:
        return element(self.term(node.value))

    def _named(self, node: ast.NamedExpr) -> Term:
        result = self.term(node.value)
        self.assign(node.target, result)
        return result

    def _await(self, node: ast.Await) -> Term:
        return self.term(node.value)

    def _yield(self, node: ast.Yield | ast.YieldFrom) -> Term:
        self.function.generates = True
        loop = self._innermost()
        if loop is not None:
            loop.yields = True
        if node.value is not None:
            result = self.term(node.value)
            result = element(result) if isinstance(node, ast.YieldFrom) else result
            self.function.returns = join(self.function.returns, result)
        return UNKNOWN

    # Calls

    def _call(self, node: ast.Call) -> Term:
        function = node.func
        base: Term = UNKNOWN
        if isinstance(function, ast.Attribute):
            base = self.term(function.value)
            callee = self.attribute_of(base, function.attr)
            if self.reader.keep is not None:
                self.reader.keep[function] = callee
        else:
            callee = self.term(function)
        arguments = [self.term(argument) for argument in node.args]
        keywords = {word.arg or "**": self.term(word.value) for word in node.keywords}
        reader = self.reader
        if reader.keep is not None:
            reader.places[node] = self.stack
        self._notice(node, callee, arguments, keywords)
        if isinstance(function, ast.Attribute):
            found = self._method_result(node, function, base, arguments)
            if found is not None:
                return found
        result = self._result(callee, arguments, keywords)
        if result == OPTIMIZER:
            self.function.builds = True
        return result

    def _notice(self, node: ast.Call, callee: Term, arguments: list[Term], keywords: dict[str, Term]) -> None:
        """Keep what the project must know of the call; mark the loop that trains."""
        if isinstance(node.func, ast.Attribute):
            self._notice_method(node, node.func, callee)
        if not is_library(callee) or any(may_be_function(one) for one in (*arguments, *keywords.values())):
            given = tuple(keywords.items())
            self.function.calls.append(Call(callee, node.lineno, self.stack, tuple(arguments), given, self.no_grad))
        if self.loop_names:
            mark_use(node, self.loop_names, self.function.loops)
            self._mark_feeding(callee, arguments)
        if callee == MODULE and runs_module(node.func):
            for frame in self.stack:
                if frame >= 0:
                    self.function.loops[frame].models = True
                    self.function.loops[frame].quiet |= self.no_grad

    def _notice_method(self, node: ast.Call, function: ast.Attribute, callee: Term) -> None:
        name = function.attr
        if name in BACKWARDS:
            self._mark_training(callee)
            differentiated = node.args[0] if node.args else function.value  # accelerator.backward(loss)
            if isinstance(differentiated, ast.Name):
                self.names[differentiated.id] = TENSOR
        elif name in ("register_buffer", "register_parameter"):
            self.reader.register(self, node)
        elif name in ("to", "cuda") and self.loop_names:
            mark_moving(function.value, self.loop_names, self.function.loops)
        elif name in OF_MODULES and not node.args:
            self.function.evaluates = self.function.evaluates or name == "eval"
            if isinstance(function.value, ast.Name):
                mark_module(self.names, function.value.id, self.lookup(function.value.id))
        elif name == "step" and updates(function.value, self.lookup):
            self.function.updates = True
            loop = self._innermost()
            if loop is not None:
                loop.updates = True

    def _mark_training(self, callee: Term) -> None:
        if isinstance(callee, tuple) and callee[0] == "attr" and callee[1][0] in ("super",):
            return
        loop = self._innermost()
        if loop is None:
            self.function.steps = True
        else:
            loop.trains = True

    def _mark_feeding(self, callee: Term, arguments: list[Term]) -> None:
        """Something on the device goes into what may be a model."""
        if may_be_model(callee) and any(map(is_on_device, arguments)):
            for frame in self.stack:
                if frame >= 0:
                    self.function.loops[frame].feeds = True

    def _innermost(self) -> Loop | None:
        for frame in reversed(self.stack):
            if frame >= 0 and not self.function.loops[frame].comprehension:
                return self.function.loops[frame]
        return None

    def _result(self, callee: Term, arguments: list[Term], keywords: dict[str, Term]) -> Term:
        if isinstance(callee, str):
            return TENSOR if callee in (MODULE, TENSOR) else UNKNOWN
        if callee[0] == "name":
            return named_result(callee[1], arguments, keywords)
        result: Term = ("call", callee) if depth(callee) < 8 else UNKNOWN
        return ("aside", result) if result and all_on_host(arguments) else result

    def _method_result(self, node: ast.Call, function: ast.Attribute, base: Term, arguments: list[Term]) -> Term | None:
        name = function.attr
        if name == "prepare" or name in ("setup", "setup_dataloaders"):
            found = prepared(base, arguments)
            if found is not None:
                return found
        if isinstance(base, str):
            return torch_names.method(base, name, arguments, to_host(node))
        if base[0] in ("list", "dict"):
            return container_method(self.names, function, base, arguments)
        if base[0] == "name":
            return None
        return method_of_unknown(base, name, node)

    # Binding names

    def assign(self, target: ast.expr, term: Term, loop: int = -1) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = term
            if loop >= 0:
                self.loop_names[target.id] = loop
        elif isinstance(target, ast.Tuple | ast.List):
            for number, part in enumerate(target.elts):
                inner = part.value if isinstance(part, ast.Starred) else part
                self.assign(inner, unpacked(term, number, len(target.elts)), loop)
        elif isinstance(target, ast.Attribute):
            self.term(target.value)
            self.reader.assign_attribute(self, target, term)
        elif isinstance(target, ast.Subscript):
            self.term(target)
            if isinstance(target.value, ast.Name):
                put(self.names, target.value.id, self.lookup(target.value.id), term)

    def enter_loop(self, iterable: ast.expr, over: Term, comprehension: bool = False) -> int:
        """A new loop on the stack; the caller puts the stack back."""
        parent = next((frame for frame in reversed(self.stack) if frame >= 0), -1)
        number = len(self.function.loops)
        self.function.loops.append(Loop(iterable.lineno, over, parent, comprehension, no_grad=self.no_grad))
        self.stack = (*self.stack, number)
        return number


_IDENTITY = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
_HANDLERS: dict[type, Callable[[Expressions, Any], Term]] = {
    ast.Name: Expressions._name, ast.Constant: Expressions._constant, ast.Attribute: Expressions._attribute,
    ast.BinOp: Expressions._binary, ast.UnaryOp: Expressions._unary, ast.BoolOp: Expressions._boolean,
    ast.Compare: Expressions._compare, ast.IfExp: Expressions._choice, ast.Subscript: Expressions._subscript,
    ast.Slice: Expressions._slice, ast.List: Expressions._sequence, ast.Set: Expressions._sequence,
    ast.Tuple: Expressions._sequence, ast.Dict: Expressions._dict, ast.JoinedStr: Expressions._text,
    ast.ListComp: Expressions._comprehension, ast.SetComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension, ast.DictComp: Expressions._dict_comprehension,
    ast.Lambda: Expressions._lambda, ast.Starred: Expressions._starred, ast.NamedExpr: Expressions._named,
    ast.Await: Expressions._await, ast.Yield: Expressions._yield, ast.YieldFrom: Expressions._yield,
    ast.Call: Expressions._call,
}  # fmt: skip
