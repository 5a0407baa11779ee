"""What statements do: which names they bind, which way they go on, and what they return."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import MemberDescriptorType
from typing import Any

from hotlap.loading.purity.changes import ROUNDS
from hotlap.loading.purity.created import Instance
from hotlap.loading.purity.expressions import Expressions
from hotlap.loading.purity.frames import joined, same_names
from hotlap.loading.purity.guards import opens_once
from hotlap.loading.purity.objects import MissingAttribute
from hotlap.loading.purity.questions import need_own, need_plain, refuse_lazy
from hotlap.loading.purity.study import Impure
from hotlap.loading.purity.values import ANYTHING, NOTHING, Value, container, either, fresh

COMPOUND = ast.If | ast.For | ast.While | ast.With | ast.Try


class Statements(Expressions):
    def block(self, statements: Sequence[ast.stmt]) -> bool:
        """Return whether the end of the block is reached."""
        return all(self._statement(statement) for statement in statements)

    def _statement(self, node: ast.stmt) -> bool:
        self.frame.line = node.lineno
        self.study.check_time()
        read = getattr(self, f"_{type(node).__name__}", None)
        if read is None:
            raise Impure(f"has a statement that is not supported ({type(node).__name__.lower()})")
        try:
            return (read(node) if isinstance(node, COMPOUND) else self.settled(lambda: read(node))) is not False
        except MissingAttribute:
            return False  # the program raises an error here
        finally:
            for met in self.frame.tries:
                met.append(dict(self.frame.names))

    def _Expr(self, node: ast.Expr) -> None:
        self.evaluate(node.value)

    def _Pass(self, node: ast.Pass) -> None:
        pass

    def _Return(self, node: ast.Return) -> bool:
        value = Value(plain=True, known=None) if node.value is None else self.evaluate(node.value)
        refuse_lazy(value)
        self.frame.returned.append(value)
        return False

    def _Raise(self, node: ast.Raise) -> bool:
        for expression in (node.exc, node.cause):
            if expression is not None:
                for kind in self.evaluate(expression).objects:
                    self.call_object(kind, [], {})
        return False

    def _Assert(self, node: ast.Assert) -> None:
        self.truth(self.evaluate(node.test))
        if node.msg is not None:
            self.evaluate(node.msg)

    def _Global(self, node: ast.Global) -> None:
        self.frame.foreign.update(node.names)

    def _Nonlocal(self, node: ast.Nonlocal) -> None:
        self.frame.foreign.update(node.names)

    def _Assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value))

    def _AugAssign(self, node: ast.AugAssign) -> None:
        target = ast.copy_location(_loaded(node.target), node.target)
        before, by = self.evaluate(target), self.evaluate(node.value)
        need_plain(before, by)
        if not before.own and not before.nothing:
            raise Impure(f"writes into {ast.unparse(node.target)}, which outlives the call")
        result = replace(
            fresh(before, by, array=before.array or by.array), deep=(before.deep and by.deep) or before.array
        )
        if not result.array:
            self.put_into_a_container(by)
        self.assign(node.target, result)

    def _Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id not in self.frame.foreign:
                self.frame.names.pop(target.id, None)
            elif isinstance(target, ast.Subscript):
                need_own(self.evaluate(target.value), target.value)
                self.put_into_a_container()
            else:
                raise Impure(f"deletes {ast.unparse(target)}")

    def _Import(self, node: ast.Import) -> None:
        for imported in node.names:
            module = self._module(imported.name)
            top = self._module(imported.name.partition(".")[0])
            self.bind_name(
                imported.asname or imported.name.partition(".")[0], Value(objects=(module if imported.asname else top,))
            )

    def _module(self, name: str) -> Any:
        if sys.modules.get(name) is None:
            raise Impure(f"imports {name} when an item is fetched")
        self.study.names[id(sys.modules), name] = sys.modules, name
        return sys.modules[name]

    def _ImportFrom(self, node: ast.ImportFrom) -> None:
        package = self.frame.function.__globals__.get("__package__") or ""
        parts = package.split(".")
        base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
        name = ".".join(component for component in (base, node.module or "") if component)
        module = self._module(name)
        for imported in node.names:
            self.bind_name(
                imported.asname or imported.name, self.load_attribute(Value(objects=(module,)), imported.name)
            )

    def _FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.decorator_list:
            raise Impure(f"defines {node.name} with a decorator when an item is fetched")
        self.bind_name(node.name, self.closure(node))

    # Compound statements

    def _If(self, node: ast.If) -> bool:
        self.in_guard = opens_once(node)
        truth = self.truth(self.settled(lambda: self.evaluate(node.test)))
        self.in_guard = False
        if truth is not None:
            return self.block(node.body if truth else node.orelse)
        with self.perhaps():
            return self._branches([node.body, node.orelse])

    def _branches(self, bodies: Sequence[Sequence[ast.stmt]]) -> bool:
        before, reached = self.frame.names, []
        for body in bodies:
            self.frame.names = dict(before)
            if self.block(body):
                reached.append(self.frame.names)
        self.frame.names = joined(reached) if reached else before
        return bool(reached)

    def _For(self, node: ast.For) -> bool:
        element = self.settled(lambda: self.iterated(self.evaluate(node.iter)))
        if element.nothing:
            return self.block(node.orelse)

        def begin() -> None:
            """Evaluate the iterable again, which the loop itself may change."""
            nonlocal element
            element = either([element, self.iterated(self.evaluate(node.iter))])
            self.assign(node.target, element)

        return self._loop(node.body, node.orelse, begin)

    def _While(self, node: ast.While) -> bool:
        return self._loop(node.body, node.orelse, lambda: self.truth(self.evaluate(node.test)))

    def _loop(self, body: Sequence[ast.stmt], after: Sequence[ast.stmt], begin: Any) -> bool:
        frame = self.frame
        for _ in range(ROUNDS):
            before = dict(frame.names)
            frame.left.append([])
            with self.perhaps():
                begin()
                reached = [dict(frame.names)] if self.block(body) else []
            frame.names = joined([before, *reached, *frame.left.pop()])
            if same_names(before, frame.names):
                return self.block(after) if after else True
        raise Impure("has a loop whose values do not settle")

    def _leave_loop(self) -> bool:
        self.frame.left[-1].append(dict(self.frame.names))
        return False

    def _Break(self, node: ast.Break) -> bool:
        return self._leave_loop()

    def _Continue(self, node: ast.Continue) -> bool:
        return self._leave_loop()

    def _With(self, node: ast.With) -> bool:
        for item in node.items:
            value = self.settled(lambda item=item: self.evaluate(item.context_expr))  # type: ignore[misc]
            need_plain(value)
            if not value.own:
                raise Impure(f"uses `with` on {ast.unparse(item.context_expr)}, which outlives the call")
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value)
        return self.block(node.body)

    def _Try(self, node: ast.Try) -> bool:
        met, all_met = [dict(self.frame.names)], [dict(self.frame.names)]
        self.frame.tries += [all_met, met]
        before, self.study.reads_files = self.study.reads_files, False
        with self.perhaps():
            going = self.block(node.body)
            if self.study.reads_files and not all(_raises(handler) for handler in node.handlers):
                raise Impure("continues if a file cannot be read, which may appear later")
            self.study.reads_files |= before
            self.frame.tries.pop()
            reached = [dict(self.frame.names)] if going and self.block(node.orelse) else []
            for handler in node.handlers:
                self.frame.names = joined(met)
                if handler.type is not None:
                    self.evaluate(handler.type)
                if handler.name is not None:
                    self.bind_name(handler.name, replace(ANYTHING, own=True))
                if self.block(handler.body):
                    reached.append(dict(self.frame.names))
        self.frame.tries.pop()
        self.frame.names = joined([*reached, *all_met] if node.finalbody else reached or met)
        return (self.block(node.finalbody) if node.finalbody else True) and bool(reached)

    # Assignments

    def bind_name(self, name: str, value: Value) -> None:
        if name in self.frame.foreign:
            raise Impure(f"sets {name}, which outlives the call")
        refuse_lazy(value)
        self.frame.names[name] = value

    def assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.bind_name(target.id, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, container(self.iterated(value)))
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Subscript):
            owner, key = self.evaluate(target.value), self.evaluate(target.slice)
            need_plain(key, value)
            refuse_lazy(value)
            need_own(owner, target.value)
            if owner.array and isinstance(key.known, str):
                raise Impure(f"writes into {ast.unparse(target.value)}, whose type is not known")
            if not owner.array:
                self.put_into_a_container(value)
        elif isinstance(target, ast.Attribute):
            self._set_attribute(target, value)
        else:
            raise Impure(f"assigns to {ast.unparse(target)}")

    def _unpack(self, targets: Sequence[ast.expr], value: Value) -> None:
        items = value.items
        starred = any(isinstance(target, ast.Starred) for target in targets)
        if items is not None and len(items) == len(targets) and not starred:
            for target, item in zip(targets, items, strict=True):
                self.assign(target, item)
            return
        known = value.known
        if type(known) is tuple and len(known) == len(targets) and not starred:
            for target, item in zip(targets, known, strict=True):
                self.assign(target, self.objects.value_of(item))
            return
        element = self.iterated(value)
        for target in targets:
            self.assign(target, element)

    def _set_attribute(self, target: ast.Attribute, value: Value) -> None:
        owner = self.evaluate(target.value)
        if (
            owner.made
            and not owner.objects
            and not owner.plain
            and all(isinstance(made, Instance) for made in owner.made)
        ):
            for made in owner.made:
                member = self.objects.member(made.kind, target.attr)
                if hasattr(type(member), "__set__") and not isinstance(member, MemberDescriptorType):
                    raise Impure(f"sets {ast.unparse(target)}, which runs code")
                self.set_field(made, target.attr, either([made.fields.get(target.attr, NOTHING), value]))
            return
        if self.opens(owner, self.mangled(target.attr), value):
            return
        raise Impure(f"sets {ast.unparse(target)}, which outlives the call")


def _loaded(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, ast.Load())
    if isinstance(target, ast.Subscript):
        return ast.Subscript(target.value, target.slice, ast.Load())
    return target


def _raises(handler: ast.ExceptHandler) -> bool:
    """Return whether the handler raises in the end."""
    return isinstance(handler.body[-1], ast.Raise)
