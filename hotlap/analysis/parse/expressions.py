"""Works out what each expression of a function may be, in one pass from top to bottom. Calls are in call_values.py."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, cast

from hotlap.analysis.parse import guards, torch_names
from hotlap.analysis.parse.call_values import Reader, ReadState
from hotlap.analysis.parse.calls import given_by, is_on_device, put, times
from hotlap.analysis.parse.facts import Call, Function, Loop, Stack
from hotlap.analysis.parse.terms import (
    DEEPEST,
    NUMBER,
    NUMPY,
    TENSOR,
    TENSORS,
    TEXT,
    UNKNOWN,
    Term,
    depth,
    either,
    element,
    indexed,
    join,
    moved,
    unpacked,
)
from hotlap.analysis.parse.tree import walk


class Expressions(ReadState):
    """Reads the expressions of one function."""

    def __init__(
        self, reader: Reader, function: Function, environment: dict[str, Term], outer: Expressions | None
    ) -> None:
        super().__init__(reader, function, environment)
        self.outer = outer
        self.losses: frozenset[str] = frozenset()  # names that a backward pass of the function starts from
        self.rare_names: set[str] = set()
        self.few: set[str] = set()  # names of small numbers
        self.ranges: dict[str, ast.expr] = {}  # what names were last set to, such as a bar over a range
        self.starts: dict[str, int] = {}  # names set to a multiple of a loop's counter, and the loop
        self.set_in: dict[str, int] = {}  # names, and the loop they were last set in

    # Names and constants

    def term(self, node: ast.expr) -> Term:
        if node.__class__ is ast.Name:
            result = self.lookup(node.id)
        else:
            handler = _HANDLERS.get(node.__class__)
            result = handler(self, node) if handler else self._anything(node)
        if self.keep is not None:
            self.keep[node] = result
        return result

    def lookup(self, name: str) -> Term:
        found = self.names.get(name)
        if found is not None:
            return found
        scope = self.outer
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return self.reader.lookup(name)

    def plain(self, node: ast.expr) -> Term:
        """Look up a name or dotted name without noting it as used."""
        if isinstance(node, ast.Name):
            return self.lookup(node.id)
        if isinstance(node, ast.Attribute):
            return self.attribute_of(self.plain(node.value), node.attr)
        return UNKNOWN

    def _constant(self, node: ast.Constant) -> Term:
        return _CONSTANTS.get(node.value.__class__, UNKNOWN)

    def _anything(self, node: ast.expr) -> Term:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.term(child)
        return UNKNOWN

    def _attribute(self, node: ast.Attribute) -> Term:
        base = self.term(node.value)
        if base.__class__ is tuple and base[0] == "self" and node.attr in self.reader.properties(base[1]):
            getter = ("def", f"{base[1]}.{node.attr}")
            self.function.calls.append(Call(getter, node.lineno, self.stack, no_grad=self.no_grad))
        return self.attribute_of(base, node.attr)

    def attribute_of(self, base: Term, name: str) -> Term:
        if name == "saved_tensors":
            return ("list", TENSOR)
        if isinstance(base, str):
            if not base:
                return UNKNOWN
            return torch_names.attribute(base, name)
        if base[0] == "name":
            return ("name", f"{base[1]}.{name}")
        if base[0] in ("list", "dict") or depth(base) >= DEEPEST:
            return UNKNOWN
        return ("attr", base, name)

    # Operations

    def _binary(self, node: ast.BinOp) -> Term:
        left, right = self.term(node.left), self.term(node.right)
        if left == TEXT:
            return TEXT
        if UNKNOWN in (left, right) and NUMBER in (left, right):
            return UNKNOWN  # 0.5 * something
        return join(left, right)

    def _unary(self, node: ast.UnaryOp) -> Term:
        term = self.term(node.operand)
        return NUMBER if isinstance(node.op, ast.Not) else term

    def _boolean(self, node: ast.BoolOp) -> Term:
        result: Term = UNKNOWN
        before = self.stack
        for value in node.values:
            if self.stack is not before and self.reader.keep is not None:
                self.reader.places[value] = self.stack
            result = join(result, self.term(value))
            if isinstance(node.op, ast.And):
                rare, _ = guards.of_test(value, self.counters, self.rare_names)
                if rare:
                    self.stack = (*self.stack, rare)
        self.stack = before
        return result

    def _compare(self, node: ast.Compare) -> Term:
        result = self.term(node.left)
        for operator, operand in zip(node.ops, node.comparators, strict=True):
            term = self.term(operand)
            # a tensor is never compared with a text or a list
            plain = isinstance(operator, _IDENTITY) or TEXT in (result, term) or isinstance(operand, ast.List)
            result = NUMBER if plain else join(result, term)
        if isinstance(result, str):
            return result if result in TENSORS or result == NUMPY else NUMBER
        return result

    def _choice(self, node: ast.IfExp) -> Term:
        self.term(node.test)
        before, (body, otherwise) = self.stack, guards.guards(node, self.counters, self.rare_names)
        self.stack = (*before, body) if body else before
        first = self.term(node.body)
        self.stack = (*before, otherwise) if otherwise else before
        result = join(first, self.term(node.orelse))
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
        if node.lower is not None and node.upper is not None and (self.loop_names or self.starts):
            self._note_piece(node.lower)
        return NUMBER

    def _note_piece(self, start: ast.expr) -> None:
        """Note a loop over slices: `rows[i * size : (i + 1) * size]`, also if the start is a name set to that."""
        number = self.starts.get(start.id, -1) if isinstance(start, ast.Name) else times(start, self.loop_names)
        if number >= 0:
            self.function.loops[number].strided = True

    def _sequence(self, node: ast.List | ast.Set | ast.Tuple) -> Term:
        parts = [self.term(part) for part in node.elts]
        if isinstance(node, ast.Tuple):
            return ("tuple", *parts) if len(parts) <= 12 else UNKNOWN
        result: Term = UNKNOWN
        for part in parts:
            result = join(result, part)
        return ("list", result if depth(result) < DEEPEST else UNKNOWN)

    def _table(self, node: ast.Dict) -> Term:
        """Return a term for any of the functions in `{"dice": dice, "jaccard": jaccard}`, unless there are many."""
        if not all(isinstance(value, ast.Name | ast.Attribute) for value in node.values):
            return UNKNOWN
        every = list(dict.fromkeys(self.term(value) for value in node.values))
        named = all(isinstance(term, tuple) and term[0] in ("name", "def") for term in every)
        return either(every) if named and 2 < len(every) <= _LARGEST_TABLE else UNKNOWN

    def _dict(self, node: ast.Dict) -> Term:
        table = self._table(node)
        if table:
            return ("dict", table)
        result: Term = UNKNOWN
        mixed = False
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                self.term(key)
            term = self.term(value)
            mixed = mixed or (TEXT in (result, term) and term != result and key is not node.keys[0])
            result = join(result, term if key is not None else indexed(term))
        if mixed:  # a record, whose values differ in kind
            return ("dict", UNKNOWN)
        return ("dict", result if depth(result) < DEEPEST else UNKNOWN)

    def _text(self, node: ast.JoinedStr) -> Term:
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.term(value.value)
        return TEXT

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Term:
        before = self._enter_comprehension(node.generators)
        result = self.term(node.elt)
        self.stack = before
        return ("list", result if depth(result) < DEEPEST else UNKNOWN)

    def _dict_comprehension(self, node: ast.DictComp) -> Term:
        before = self._enter_comprehension(node.generators)
        self.term(node.key)
        result = self.term(node.value)
        self.stack = before
        return ("dict", result if depth(result) < DEEPEST else UNKNOWN)

    def _enter_comprehension(self, generators: list[ast.comprehension]) -> Stack:
        before = self.stack
        for part in generators:
            over = self.term(part.iter)
            number = self.enter_loop(part.iter, over, comprehension=True)
            outer = given_by(part.iter, self.loop_names)
            self.assign(part.target, element(over), outer if outer >= 0 else number)
            for condition in part.ifs:
                self.term(condition)
        return before

    def _lambda(self, node: ast.Lambda) -> Term:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.term(default)
        return self.reader.define_lambda(node, self)

    def _starred(self, node: ast.Starred) -> Term:
        given = element(self.term(node.value))
        return UNKNOWN if given[:1] == ("rest",) else given  # several arguments in unknown order

    def _named(self, node: ast.NamedExpr) -> Term:
        result = self.term(node.value)
        self.assign(node.target, result)
        return result

    def _await(self, node: ast.Await) -> Term:
        return self.term(node.value)

    def _yield(self, node: ast.Yield | ast.YieldFrom) -> Term:
        self.function.generates = True
        self.function.quiets |= self.no_grad
        loop = self._innermost()
        if loop is not None:
            loop.yields = True
        if node.value is not None:
            result = self.term(node.value)
            result = element(result) if isinstance(node, ast.YieldFrom) else result
            self.function.returns = join(self.function.returns, result)
        return UNKNOWN

    def counts_here(self, test: ast.expr) -> bool:
        """Match `j == 0` for the innermost loop's counter, which is true once per iteration of the loop around it."""
        frames = [frame for frame in self.stack if frame >= 0]
        names = [test.left, *test.comparators] if isinstance(test, ast.Compare) else []
        return bool(frames) and any(
            isinstance(side, ast.Name) and self.loop_names.get(side.id) == frames[-1] for side in names
        )

    def is_kept_empty(self, node: ast.If) -> bool:
        """Match `if preds is None: preds = …` in a loop for a name set before it, which is true the first time only."""
        name = guards.is_still_none(node.test)
        return bool(name) and self.here >= 0 and self.set_in.get(name, -1) != self.here and guards.sets(node.body, name)

    # Binding names

    def assign(self, target: ast.expr, term: Term, loop: int = -1) -> None:
        if isinstance(target, ast.Name):
            loss = target.id in self.losses and (not term or term[0] in _QUESTIONS)
            self.names[target.id] = TENSOR if loss else term
            if loop >= 0:
                self.loop_names[target.id] = loop
        elif isinstance(target, ast.Tuple | ast.List):
            for number, part in enumerate(target.elts):
                inner = part.value if isinstance(part, ast.Starred) else part
                self.assign(inner, unpacked(term, number, len(target.elts)), loop)
        elif isinstance(target, ast.Attribute):
            self.term(target.value)
            self.function.kept.append(term)
            self.reader.assign_attribute(self, target, term)
        elif isinstance(target, ast.Subscript):
            self.term(target)
            self._put(target.value, term)
            self._note_moved(target, term)

    def _note_moved(self, target: ast.Subscript, term: Term) -> None:
        """Note `for key in batch: batch[key] = batch[key].to(device)`, after which the whole batch is on the device."""
        container, key = target.value, target.slice
        if not isinstance(container, ast.Name) or not isinstance(key, ast.Name) or key.id not in self.loop_names:
            return
        before = self.names.get(container.id, UNKNOWN)
        held = isinstance(before, tuple) and before[0] in ("list", "dict", "tuple")
        if before and not held and is_on_device(term) and before != TENSOR:
            self.names[container.id] = moved(before)

    def _put(self, container: ast.expr, term: Term) -> None:
        """Put a term into a container of this function, an enclosing function, the file, or the object."""
        if isinstance(container, ast.Attribute):
            self.function.kept.append(term)
            self.reader.put_attribute(self, container, term)
        elif isinstance(container, ast.Name):
            name = container.id
            if name not in self.names:
                self.function.kept.append(term)
            place = self.names if name in self.names or self.outer is None else self.home(name)
            put(place, name, place.get(name, UNKNOWN), term)

    def home(self, name: str) -> dict[str, Term]:
        """Return the scope that defines a name."""
        scope: Expressions | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names
            scope = scope.outer
        return self.reader.names

    def carry(self, body: list[ast.stmt], before: dict[str, Term]) -> None:
        """Carry the term that an iteration gives a number, such as `loss = 0`, into the next iteration."""
        keep = self.reader.keep
        names = {name for name, term in before.items() if term == NUMBER}
        made = {name: term for name in names if (term := self.names.get(name, UNKNOWN)) not in (NUMBER, UNKNOWN)}
        if keep is None or not made:
            return
        for node in (part for statement in body for part in walk(statement)):
            if isinstance(node, ast.Name) and node.id in made and keep.get(node) == NUMBER:
                keep[node] = made[node.id]

    def enter_loop(self, iterable: ast.expr, over: Term, comprehension: bool = False) -> int:
        """Push a new loop on the stack and return its number; the caller restores the stack."""
        number = len(self.function.loops)
        self.function.loops.append(Loop(iterable.lineno, over, self.here, comprehension, no_grad=self.no_grad))
        self.stack = (*self.stack, number)
        return number


_LARGEST_TABLE = 64
_CONSTANTS: dict[type, Term] = {str: TEXT, int: NUMBER, float: NUMBER, bool: NUMBER}
_QUESTIONS = frozenset("call attr index part item join operation moved aside".split())
_IDENTITY = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
_HANDLERS: dict[type, Callable[[Expressions, Any], Term]] = {
    ast.Constant: Expressions._constant, ast.Attribute: Expressions._attribute,
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
