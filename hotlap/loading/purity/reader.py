"""Reads the code of functions without running it, statement by statement, tracking what is known of every value.

All paths through the code are followed except those that the state rules out (`if self.augment:` when that is False);
if that state changes, the conclusions no longer hold. Code that is not known to be pure ends the reading, with its
line.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType
from typing import Any

from hotlap.loading.purity.calls import FORM, Calls, Closure, Instance, Keywords, equal_to_itself_alone, is_direct
from hotlap.loading.purity.guards import opens_once
from hotlap.loading.purity.objects import (
    ABSENT,
    DelegatedAttribute,
    MissingAttribute,
    Objects,
    Property,
    of_the_program,
)
from hotlap.loading.purity.plain import is_array, is_atom, is_record, type_name
from hotlap.loading.purity.rules import is_method
from hotlap.loading.purity.source import Definition, Unreadable, definition_of
from hotlap.loading.purity.study import Impure, Study, reference
from hotlap.loading.purity.values import NOTHING, UNKNOWN, Value, alias, container, either, flat, fresh, sequence

DEEPEST_CALLS = 24
ROUNDS = 6  # at most, through a loop, until nothing more is learned
Names = dict[str, Value]
OF_ARRAYS = frozenset("T mT H mH data real imag flat nbytes itemsize strides is_cuda layout".split())
OF_IMAGES = frozenset("size width height mode".split())
# Of any plain value: they follow from what is compared, and a program cannot set them without changing that.
OF_VALUES = (
    FORM
    | OF_ARRAYS
    | OF_IMAGES
    | frozenset(
        "columns index values iloc loc at iat str dt cat dtypes empty name names levels attrs chunks maxshape "
        "year month day hour minute second microsecond days seconds microseconds tzinfo "
        "string pos endpos lastindex lastgroup re pattern flags groups groupindex "
        "stem suffix suffixes parent parents parts anchor drive root numerator denominator start stop step "
        "schema column_names num_rows num_columns type kind char itemsize fields hex int value "
        "max min eps tiny bits resolution maxlen".split()
    )
)
ANYTHING = Value(plain=True, own=False, deep=False, steady=False)
COMPOUND = ast.If | ast.For | ast.While | ast.With | ast.Try


class Frame:
    def __init__(self, function: FunctionType, names: Names, definition: Definition, parent: Frame | None) -> None:
        self.function, self.names, self.definition, self.parent = function, names, definition, parent
        self.returned: list[Value] = []
        self.left: list[list[Names]] = []  # per loop: what is known at each break and continue
        self.tries: list[list[Names]] = []  # per try: what is known wherever an error may occur
        self.foreign: set[str] = set()  # names declared global or nonlocal
        self.line = definition.lineno
        self.changed = 0  # when a value was last written into
        self.captured = False  # whether a closure may read it later
        self.cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))


class Reader(Calls):
    def __init__(self, study: Study) -> None:
        self.study, self.objects = study, Objects(study)
        self.frames: list[Frame] = []
        self._all_frames: list[Frame] = []  # including those of functions that have returned, which closures hold
        self._results: dict[Any, Value] = {}
        self._later: dict[tuple[int, str], Value] = {}  # attributes that the first fetch sets
        self._looked_at: set[tuple[int, str]] = set()  # attributes read before they were set
        self._in_guard = False  # reading a condition on whether an attribute must be set
        self._undecided = 0  # number of enclosing conditions that may or may not hold
        self._stores = 0  # writes into what the call created: the clock of changes
        self._fields_changed: list[
            tuple[int, int]
        ] = []  # of created objects: when a field changed, and when the object was created

    def end(self) -> None:
        """Break the reference cycles, which would keep a dataset alive until garbage collection."""
        for frame in self._all_frames:
            vars(frame).clear()
        for held in (self.frames, self._all_frames, self._results, self._later):
            held.clear()
        self.objects.end()

    # Functions

    def follow(self, function: FunctionType, args: Sequence[Value], kwargs: Names) -> Value:
        """Return the result of calling a Python function."""
        key = (
            function.__code__,
            id(function),
            tuple(argument.key() for argument in args),
            tuple((name, value.key()) for name, value in kwargs.items()),
        )
        if key in self._results:
            return self._results[key]
        stores = self._stores
        found = self._followed(function, args, kwargs)
        if self._stores == stores and not any(value.made for value in (*args, *kwargs.values())):
            self._results[key] = found
        return found

    def _followed(self, function: FunctionType, args: Sequence[Value], kwargs: Names) -> Value:
        self.study.check_time()
        if len(self.frames) >= DEEPEST_CALLS or any(
            frame.function.__code__ is function.__code__ for frame in self.frames
        ):
            if sum(frame.function.__code__ is function.__code__ for frame in self.frames) > 3:
                raise Impure(f"{function.__qualname__} calls itself")
            if len(self.frames) >= DEEPEST_CALLS:
                raise Impure("its functions call each other too deeply")
        try:
            definition = definition_of(function)
        except Unreadable as why:
            raise Impure(f"calls {function.__qualname__}: {why}") from None
        if function.__code__.co_flags & 0x2A0:  # generators and coroutines
            raise Impure(f"{function.__qualname__} is a generator")
        return self._run(Frame(function, self._bind(function, definition, args, kwargs), definition, None))

    def run_closure(self, closure: Closure, args: Sequence[Value], kwargs: Names) -> Value:
        frame = closure.frame
        names = self._bound_names(closure.definition, args, kwargs, closure.defaults)
        inner = Frame(frame.function, names, closure.definition, frame)
        inner.cells = frame.cells
        return self._run(inner)

    def _run(self, frame: Frame) -> Value:
        self.frames.append(frame)
        self._all_frames.append(frame)
        self.study.depth = len(self.frames)
        in_guard, self._in_guard = self._in_guard, False
        try:
            body = frame.definition.body
            if not isinstance(body, list):
                return self.evaluate(body)
            if self._block(body):
                frame.returned.append(Value(plain=True, known=None))
            return either(frame.returned)
        except Impure as why:
            raise self._placed(why) from None
        finally:
            self.frames.pop()
            self.study.depth = len(self.frames)
            if not frame.captured:
                self._all_frames.remove(frame)
            self._in_guard = in_guard

    def _placed(self, why: Impure) -> Impure:
        if getattr(why, "placed", False):
            return why
        frame = self.frames[-1]
        placed = Impure(f"{Path(frame.function.__code__.co_filename).name}:{frame.line} {why}")
        placed.placed = True  # type: ignore[attr-defined]
        return placed

    def _bind(self, function: FunctionType, definition: Definition, args: Sequence[Value], kwargs: Names) -> Names:
        defaults = [self.objects.value_of(default) for default in function.__defaults__ or ()]
        by_name = {name: self.objects.value_of(default) for name, default in (function.__kwdefaults__ or {}).items()}
        if of_the_program(function.__module__):
            for name in ("__defaults__", "__kwdefaults__", "__code__"):
                if getattr(function, name):
                    self.study.note_attribute(function, name)
        return self._bound_names(definition, args, kwargs, (defaults, by_name))

    def _bound_names(
        self, definition: Definition, args: Sequence[Value], kwargs: Names, defaults: tuple[list[Value], Names]
    ) -> Names:
        parameters = definition.args
        positional = [parameter.arg for parameter in (*parameters.posonlyargs, *parameters.args)]
        names: Names = dict(zip(positional[len(positional) - len(defaults[0]) :], defaults[0], strict=False))
        names.update(defaults[1])
        rest = dict(kwargs)
        for value in (*args, *kwargs.values()):
            self._need_read(value)
        if any(argument.spread for argument in args[: len(positional)]):
            raise Impure("calls a function with * of a value whose length is not known")
        names.update(zip(positional, args, strict=False))
        for name in (*positional, *(parameter.arg for parameter in parameters.kwonlyargs)):
            if name in rest:
                names[name] = rest.pop(name)
        if parameters.vararg is not None:
            more = args[len(positional) :]
            names[parameters.vararg.arg] = (
                container(either(more)) if any(argument.spread for argument in more) else sequence(more)
            )
        if parameters.kwarg is not None:
            names[parameters.kwarg.arg] = container(either(rest.values())) if rest else fresh()
            names[f"**{parameters.kwarg.arg}"] = Value(made=(Keywords(rest),))
        return names

    # Statements

    def _block(self, statements: Sequence[ast.stmt]) -> bool:
        """Return whether the end of the block is reached."""
        return all(self._statement(statement) for statement in statements)

    def _statement(self, node: ast.stmt) -> bool:
        self.frame.line = node.lineno
        self.study.check_time()
        read = getattr(self, f"_{type(node).__name__}", None)
        if read is None:
            raise Impure(f"has a statement that is not supported ({type(node).__name__.lower()})")
        try:
            return (read(node) if isinstance(node, COMPOUND) else self._settled(lambda: read(node))) is not False
        except MissingAttribute:
            return False  # the program raises an error here
        finally:
            for met in self.frame.tries:
                met.append(dict(self.frame.names))

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def _Expr(self, node: ast.Expr) -> None:  # noqa: N802 named after its node, like all that follow
        self.evaluate(node.value)

    def _Pass(self, node: ast.Pass) -> None:  # noqa: N802
        pass

    def _Return(self, node: ast.Return) -> bool:  # noqa: N802
        value = Value(plain=True, known=None) if node.value is None else self.evaluate(node.value)
        self._need_read(value)
        self.frame.returned.append(value)
        return False

    def _Raise(self, node: ast.Raise) -> bool:  # noqa: N802
        for expression in (node.exc, node.cause):
            if expression is not None:
                for kind in self.evaluate(expression).objects:
                    self.call_object(kind, [], {})
        return False

    def _Assert(self, node: ast.Assert) -> None:  # noqa: N802
        self.truth(self.evaluate(node.test))
        if node.msg is not None:
            self.evaluate(node.msg)

    def _Global(self, node: ast.Global) -> None:  # noqa: N802
        self.frame.foreign.update(node.names)

    def _Nonlocal(self, node: ast.Nonlocal) -> None:  # noqa: N802
        self.frame.foreign.update(node.names)

    def _Assign(self, node: ast.Assign) -> None:  # noqa: N802
        value = self.evaluate(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: N802
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value))

    def _AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        target = ast.copy_location(_loaded(node.target), node.target)
        before, by = self.evaluate(target), self.evaluate(node.value)
        self.need_plain(before, by)
        if not before.own and not before.nothing:
            raise Impure(f"writes into {ast.unparse(node.target)}, which outlives the call")
        result = replace(
            fresh(before, by, array=before.array or by.array), deep=(before.deep and by.deep) or before.array
        )
        if not result.array:
            self.put_into_a_container(by)
        self.assign(node.target, result)

    def _Delete(self, node: ast.Delete) -> None:  # noqa: N802
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id not in self.frame.foreign:
                self.frame.names.pop(target.id, None)
            elif isinstance(target, ast.Subscript):
                self.need_own(self.evaluate(target.value), target.value)
                self.put_into_a_container()
            else:
                raise Impure(f"deletes {ast.unparse(target)}")

    def _If(self, node: ast.If) -> bool:  # noqa: N802
        self._in_guard = opens_once(node)
        truth = self.truth(self._settled(lambda: self.evaluate(node.test)))
        self._in_guard = False
        if truth is not None:
            return self._block(node.body if truth else node.orelse)
        with self._perhaps():
            return self._branches([node.body, node.orelse])

    def _branches(self, bodies: Sequence[Sequence[ast.stmt]]) -> bool:
        before, reached = self.frame.names, []
        for body in bodies:
            self.frame.names = dict(before)
            if self._block(body):
                reached.append(self.frame.names)
        self.frame.names = _joined(reached) if reached else before
        return bool(reached)

    def _For(self, node: ast.For) -> bool:  # noqa: N802
        element = self._settled(lambda: self.iterated(self.evaluate(node.iter)))
        if element.nothing:
            return self._block(node.orelse)

        def begin() -> None:
            """Evaluate the iterable again, which the loop itself may change."""
            nonlocal element
            element = either([element, self.iterated(self.evaluate(node.iter))])
            self.assign(node.target, element)

        return self._loop(node.body, node.orelse, begin)

    def _While(self, node: ast.While) -> bool:  # noqa: N802
        return self._loop(node.body, node.orelse, lambda: self.truth(self.evaluate(node.test)))

    def _loop(self, body: Sequence[ast.stmt], after: Sequence[ast.stmt], begin: Any) -> bool:
        frame = self.frame
        for _ in range(ROUNDS):
            before = dict(frame.names)
            frame.left.append([])
            with self._perhaps():
                begin()
                reached = [dict(frame.names)] if self._block(body) else []
            frame.names = _joined([before, *reached, *frame.left.pop()])
            if _same_names(before, frame.names):
                return self._block(after) if after else True
        raise Impure("has a loop whose values do not settle")

    def _leave_loop(self) -> bool:
        self.frame.left[-1].append(dict(self.frame.names))
        return False

    def _Break(self, node: ast.Break) -> bool:  # noqa: N802
        return self._leave_loop()

    def _Continue(self, node: ast.Continue) -> bool:  # noqa: N802
        return self._leave_loop()

    def _With(self, node: ast.With) -> bool:  # noqa: N802
        for item in node.items:
            value = self._settled(lambda item=item: self.evaluate(item.context_expr))  # type: ignore[misc]
            self.need_plain(value)
            if not value.own:
                raise Impure(f"uses `with` on {ast.unparse(item.context_expr)}, which outlives the call")
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value)
        return self._block(node.body)

    def _Try(self, node: ast.Try) -> bool:  # noqa: N802
        met, all_met = [dict(self.frame.names)], [dict(self.frame.names)]
        self.frame.tries += [all_met, met]
        before, self.study.reads_files = self.study.reads_files, False
        with self._perhaps():
            going = self._block(node.body)
            if self.study.reads_files and not all(_raises(handler) for handler in node.handlers):
                raise Impure("continues if a file cannot be read, which may appear later")
            self.study.reads_files |= before
            self.frame.tries.pop()
            reached = [dict(self.frame.names)] if going and self._block(node.orelse) else []
            for handler in node.handlers:
                self.frame.names = _joined(met)
                if handler.type is not None:
                    self.evaluate(handler.type)
                if handler.name is not None:
                    self._bind_name(handler.name, replace(ANYTHING, own=True))
                if self._block(handler.body):
                    reached.append(dict(self.frame.names))
        self.frame.tries.pop()
        self.frame.names = _joined([*reached, *all_met] if node.finalbody else reached or met)
        return (self._block(node.finalbody) if node.finalbody else True) and bool(reached)

    def _Import(self, node: ast.Import) -> None:  # noqa: N802
        for imported in node.names:
            module = sys.modules.get(imported.name)
            if module is None:
                raise Impure(f"imports {imported.name} when an item is fetched")
            top = sys.modules[imported.name.partition(".")[0]]
            self._bind_name(
                imported.asname or imported.name.partition(".")[0], Value(objects=(module if imported.asname else top,))
            )

    def _ImportFrom(self, node: ast.ImportFrom) -> None:  # noqa: N802
        package = self.frame.function.__globals__.get("__package__") or ""
        parts = package.split(".")
        base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
        name = ".".join(component for component in (base, node.module or "") if component)
        module = sys.modules.get(name)
        if module is None:
            raise Impure(f"imports {name} when an item is fetched")
        for imported in node.names:
            self._bind_name(
                imported.asname or imported.name, self.load_attribute(Value(objects=(module,)), imported.name)
            )

    def _FunctionDef(self, node: ast.FunctionDef) -> None:  # noqa: N802
        if node.decorator_list:
            raise Impure(f"defines {node.name} with a decorator when an item is fetched")
        self._bind_name(node.name, self._closure(node))

    # Assignments

    def _bind_name(self, name: str, value: Value) -> None:
        if name in self.frame.foreign:
            raise Impure(f"sets {name}, which outlives the call")
        self._need_read(value)
        self.frame.names[name] = value

    def _need_read(self, value: Value) -> None:
        if value.lazy:
            raise Impure("keeps a generator, whose code runs later")

    def assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._bind_name(target.id, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, container(self.iterated(value)))
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Subscript):
            owner, key = self.evaluate(target.value), self.evaluate(target.slice)
            self.need_plain(key, value)
            self._need_read(value)
            self.need_own(owner, target.value)
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
                member = self.objects._member(made.kind, target.attr)
                if hasattr(type(member), "__set__") and not isinstance(member, MemberDescriptorType):
                    raise Impure(f"sets {ast.unparse(target)}, which runs code")
                self._set_field(made, target.attr, either([made.fields.get(target.attr, NOTHING), value]))
            return
        if self._opens(owner, self._mangled(target.attr), value):
            return
        raise Impure(f"sets {ast.unparse(target)}, which outlives the call")

    def _opens(self, owner: Value, name: str, value: Value) -> bool:
        """Return whether this sets a file that is opened at the first fetch and is the same for all items.

        An array in memory is none: the program may write into it, so it is read only once it is there.
        """
        if len(owner.objects) != 1 or owner.plain or owner.made or not value.steady or not self.is_handle(value):
            return False
        holder = owner.objects[0]
        if (id(holder), name) not in self._later and (self._undecided or (id(holder), name) in self._looked_at):
            return False  # an item would depend on those fetched before it
        by_default = self.objects._member(type(holder), name)
        if by_default is not ABSENT and by_default is not None:
            return False
        self.study.opened[id(holder), name] = reference(holder), name
        self._later[id(holder), name] = value
        return True

    # Expressions

    def evaluate(self, node: ast.expr) -> Value:
        read = getattr(self, f"_{type(node).__name__}", None)
        if read is None:
            raise Impure(f"has an expression that is not supported ({type(node).__name__.lower()})")
        value: Value = read(node)
        return value

    def _Constant(self, node: ast.Constant) -> Value:  # noqa: N802
        if isinstance(node.value, str):
            self.study.texts.add(node.value)
        return Value(plain=True, known=node.value)

    def _Name(self, node: ast.Name) -> Value:  # noqa: N802
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

    def _JoinedStr(self, node: ast.JoinedStr) -> Value:  # noqa: N802
        return fresh(*(self._plainly(piece) for piece in node.values))

    def _FormattedValue(self, node: ast.FormattedValue) -> Value:  # noqa: N802
        if node.format_spec is not None:
            self.evaluate(node.format_spec)
        return fresh(self._plainly(node.value))

    def _plainly(self, node: ast.expr) -> Value:
        value = self.evaluate(node)
        self.need_plain(value)
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

    def _Set(self, node: ast.Set) -> Value:  # noqa: N802
        return container(either(self._plainly(element) for element in node.elts))

    def _Dict(self, node: ast.Dict) -> Value:  # noqa: N802
        for key in node.keys:
            if key is not None:
                self._plainly(key)
        values = [
            self.evaluate(value) if key is not None else self.values_of_mapping(self.evaluate(value))
            for key, value in zip(node.keys, node.values, strict=True)
        ]
        return container(either(values)) if values else fresh()

    def _Attribute(self, node: ast.Attribute) -> Value:  # noqa: N802
        loaded = len(self.study.loads)
        owner = self.evaluate(node.value)
        if is_direct(node.value) and (node.attr in FORM or is_record(type(owner.known))):
            self.study.looked_up(owner, loaded)
        return self.load_attribute(owner, self._mangled(node.attr))

    def _mangled(self, name: str) -> str:
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

    def load_attribute(self, owner: Value, name: str) -> Value:
        found = []
        missing: str | None = None  # not the error itself, which would form a cycle with its frames
        if owner.plain:
            found.append(self._of_plain(owner, name))
        for holder in owner.objects:
            if (id(holder), name) not in self._later and not self._in_guard:
                self._looked_at.add((id(holder), name))
            try:
                found.append(self._of_object(holder, name))
            except MissingAttribute as error:
                missing = str(error)
        for made in owner.made:
            found.append(self.made_attribute(made, name))
        if not found and missing is not None:
            raise MissingAttribute(missing)
        return either(found)

    def _of_plain(self, owner: Value, name: str) -> Value:
        if is_record(type(owner.known)) and name in owner.known._fields:
            return self.objects.value_of(getattr(owner.known, name))
        if not (_is_of_values(owner, name) or owner.objects or owner.made):  # else it is of one of those, or fails
            what = "value" if owner.known is UNKNOWN else type(owner.known).__name__
            raise Impure(f"reads .{name} of a {what}, whose changes would go unnoticed")
        if is_method(name) and not _is_field(owner, name):
            raise Impure(f"passes on the method .{name}() of a value, and what is done with it is not known")
        found = replace(alias(owner), array=owner.array and name in ("T", "data", "mT", "H", "real", "imag"))
        return either([found, *owner.parts()])

    def _of_object(self, holder: Any, name: str) -> Value:
        later = self._later.get((id(holder), name))
        try:
            found = self.objects.attribute(holder, name)
        except MissingAttribute:
            if later is None:
                raise
            return later
        if isinstance(found, Property):
            return self.call_object(found.getter, [Value(objects=(found.owner,))], {})
        for made in found.made:
            if isinstance(made, DelegatedAttribute):
                found = self.call_object(made.hook, [Value(plain=True, known=made.name)], {})
        return found if later is None else either([found, later])

    def _Subscript(self, node: ast.Subscript) -> Value:  # noqa: N802
        loaded = len(self.study.loads)
        owner, key = self.evaluate(node.value), self.evaluate(node.slice)
        by_row = key.item or _is_of_items(node.slice, key)
        if is_direct(node.value) and (by_row or _has_at(owner.known, key.known)):
            self.study.looked_up(owner, loaded, by_row)
            if not by_row:
                self.study.by_key.add(id(owner.known))
        return self.subscript(owner, key)

    def subscript(self, owner: Value, key: Value) -> Value:
        found = []
        if owner.plain:
            self.need_plain(key)
            found.append(self.objects.element_of(owner, key))
            if not key.steady:
                found = [value.unsteady() for value in found]
        for holder in owner.objects:
            found.append(self.special(holder, "__getitem__", [key]))
        for made in owner.made:
            found.append(self.call_made_method(made, "__getitem__", [key]))
        return either(found)

    def _Slice(self, node: ast.Slice) -> Value:  # noqa: N802
        parts = [self._plainly(bound) for bound in (node.lower, node.upper, node.step) if bound is not None]
        return fresh(*parts)

    def _Starred(self, node: ast.Starred) -> Value:  # noqa: N802
        return self.evaluate(node.value)

    def _BinOp(self, node: ast.BinOp) -> Value:  # noqa: N802
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        self.need_plain(left, right)
        if isinstance(node.op, ast.MatMult):
            self.study.ordered = True
        array = left.array or right.array
        return replace(fresh(left, right, array=array), deep=array or (left.deep and right.deep))

    def _UnaryOp(self, node: ast.UnaryOp) -> Value:  # noqa: N802
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            truth = self.truth(value)
            return fresh(value) if truth is None else Value(plain=True, known=not truth)
        self.need_plain(value)
        if isinstance(node.op, ast.USub) and type(value.known) in (int, float):
            return Value(plain=True, known=-value.known)
        if isinstance(node.op, ast.UAdd):
            return alias(value)  # +tensor is the tensor itself
        return fresh(value, array=value.array)

    def _BoolOp(self, node: ast.BoolOp) -> Value:  # noqa: N802
        found: list[Value] = []
        with self._perhaps():
            for operand in node.values:
                value = self.evaluate(operand)
                truth = self.truth(value)
                if truth is not None and truth is isinstance(node.op, ast.Or):
                    return either([*found, value])
                found.append(value)
        return found[-1] if all(self._decided(earlier, node.op) for earlier in found[:-1]) else either(found)

    def _decided(self, value: Value, op: ast.boolop) -> bool:
        return self.truth(value) is isinstance(op, ast.And)

    def _IfExp(self, node: ast.IfExp) -> Value:  # noqa: N802
        truth = self.truth(self.evaluate(node.test))
        if truth is not None:
            return self.evaluate(node.body if truth else node.orelse)
        with self._perhaps():
            return either([self.evaluate(node.body), self.evaluate(node.orelse)])

    def _Compare(self, node: ast.Compare) -> Value:  # noqa: N802
        values = [self.evaluate(operand) for operand in (node.left, *node.comparators)]
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Is | ast.IsNot):
            same = self.is_same(values[0], values[1])
            positive = isinstance(node.ops[0], ast.Is)
            return fresh(*values) if same is None else Value(plain=True, known=same is positive)
        if (
            len(node.ops) == 1
            and isinstance(node.ops[0], ast.Eq | ast.NotEq)
            and (same := _identical(*values)) is not None
        ):
            return Value(plain=True, known=same is isinstance(node.ops[0], ast.Eq))
        for op, left, right in zip(node.ops, values, values[1:], strict=False):
            if not isinstance(op, ast.Is | ast.IsNot):
                self._need_compared(op, left, right)
        if len(node.ops) == 1 and all(is_atom(type(value.known)) and value.known is not UNKNOWN for value in values):
            return self._compared(node.ops[0], values[0].known, values[1].known, values)
        return fresh(*values, array=any(value.array for value in values))

    def _need_compared(self, op: ast.cmpop, left: Value, right: Value) -> None:
        if isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            self.need_comparable(left)
        else:
            self.need_plain(left)
        if isinstance(op, ast.Eq | ast.NotEq):
            self.need_comparable(right)
        else:
            self.need_plain(right)

    def _compared(self, op: ast.cmpop, left: Any, right: Any, values: list[Value]) -> Value:
        if isinstance(op, ast.Eq | ast.NotEq) and type(left) in (int, str, bool, float, type(None)):
            return Value(plain=True, known=(left == right) is isinstance(op, ast.Eq))
        if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and {type(left), type(right)} <= {int, float}:
            known = {ast.Lt: left < right, ast.LtE: left <= right, ast.Gt: left > right, ast.GtE: left >= right}[
                type(op)
            ]
            return Value(plain=True, known=known)
        return fresh(*values)

    def _NamedExpr(self, node: ast.NamedExpr) -> Value:  # noqa: N802
        value = self.evaluate(node.value)
        self.assign(node.target, value)
        return value

    def _Lambda(self, node: ast.Lambda) -> Value:  # noqa: N802
        return self._closure(node)

    def _closure(self, node: Definition) -> Value:
        defaults = [self.evaluate(default) for default in node.args.defaults]
        by_name = {
            parameter.arg: self.evaluate(default)
            for parameter, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            if default is not None
        }
        for frame in _with_parents(self.frame):
            frame.captured = True
        return Value(made=(Closure(node, self.frame, (defaults, by_name)),))

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        return container(self._inside(node.generators, [node.elt])[0])

    _ListComp = _SetComp = _comprehension

    def _GeneratorExp(self, node: ast.GeneratorExp) -> Value:  # noqa: N802
        return replace(self._comprehension(node), lazy=True)

    def _DictComp(self, node: ast.DictComp) -> Value:  # noqa: N802
        key, value = self._inside(node.generators, [node.key, node.value])
        self.need_plain(key)
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

    def repeated(self, read: Callable[[], Value]) -> Value:
        """Read code that runs any number of times, until nothing more is learned."""
        found = NOTHING
        for _ in range(ROUNDS):
            before, began = dict(self.frame.names), self._stores
            with self._perhaps():
                found = either([found, read()])
            self.frame.names = _joined([before, self.frame.names])
            if _same_names(before, self.frame.names) and not self._changed_since(began):
                return found
        raise Impure("has a loop whose values do not settle")

    def _settled(self, read: Callable[[], Any]) -> Any:
        """Read an expression again while it changes values, since it may have read them before it wrote."""
        for _ in range(ROUNDS):
            began = self._stores
            found = read()
            if not self._changed_since(began):
                return found
        raise Impure("has an expression whose values do not settle")

    def _changed_since(self, began: int) -> bool:
        """Return whether anything that existed at that time has changed since."""
        if self._stores == began:
            return False
        if any(when > began >= made for when, made in self._fields_changed):
            return True
        return any(outer.changed > began for frame in self.frames for outer in _with_parents(frame))

    @contextmanager
    def _perhaps(self) -> Iterator[None]:
        self._undecided += 1
        try:
            yield
        finally:
            self._undecided -= 1

    def iterated(self, value: Value) -> Value:
        """Return the value of any of its elements."""
        found: list[Value] = []
        if value.plain:
            found.append(self.objects.element_of(value))
        for candidate in value.objects:
            found.append(self.iterated_object(candidate))
        if value.made:
            raise Impure("iterates over an object that it creates")
        return either(found)

    def put_into_a_container(self, *values: Value) -> None:
        """Note a write into a container that the call created; which one is not tracked, so it may be any."""
        self._stores += 1
        for value in values:
            self._need_read(value)
        stored = either([*values, *(part for value in values for part in value.parts())])
        for frame in self._all_frames:
            for name, value in frame.names.items():
                now = self._perhaps_with(value, stored)
                if now is not value and now.key() != value.key():
                    frame.names[name], frame.changed = now, self._stores

    def _perhaps_with(self, value: Value, stored: Value) -> Value:
        for made in value.made:
            if isinstance(made, Instance):
                for name, held in made.fields.items():
                    self._set_field(made, name, self._perhaps_with(held, stored))
        if not value.plain or value.array or value.known is not UNKNOWN:
            return value
        whole = replace(value, steady=False, deep=value.deep and stored.deep)
        if value.items is None and value.element is None:
            return whole
        inside = either([*(self._perhaps_with(part, flat(stored)) for part in value.parts()), stored])
        return replace(whole, items=None, element=replace(inside, known=UNKNOWN))

    def _set_field(self, made: Instance, name: str, value: Value) -> None:
        self._stores += 1
        self._need_read(value)
        before = made.fields.get(name)
        if before is None or before.key() != value.key():
            made.version += 1
            self._fields_changed.append((self._stores, made.born))
        made.fields[name] = value

    def need_own(self, owner: Value, node: ast.expr) -> None:
        if owner.nothing:
            return
        if owner.objects or owner.made or not owner.plain or not owner.own:
            raise Impure(f"writes into {ast.unparse(node)}, which outlives the call")


def _is_of_values(owner: Value, name: str) -> bool:
    """Return whether an attribute follows from what is compared of a value."""
    if _is_field(owner, name):
        return True
    known = owner.known
    if is_array(type(known)):
        return name in FORM or name in OF_ARRAYS
    if hasattr(type(known), "getbands"):
        return name in OF_IMAGES
    if type_name(type(known)).startswith("pandas.") and name in getattr(known, "columns", ()):
        return True
    return name in OF_VALUES or is_atom(type(known))


def _is_field(owner: Value, name: str) -> bool:
    return name in getattr(owner.record, "_fields", ())


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


def _identical(left: Value, right: Value) -> bool | None:
    """Return whether two objects that equal only themselves are identical; None if that is not known."""
    if any(len(value.objects) != 1 or value.plain or value.made for value in (left, right)):
        return None
    if not all(equal_to_itself_alone(value.objects[0]) for value in (left, right)):
        return None
    return left.objects[0] is right.objects[0]


def _joined(several: Sequence[Names]) -> Names:
    names = {name for branch in several for name in branch}
    return {name: either(branch[name] for branch in several if name in branch) for name in names}


def _same_names(left: Names, right: Names) -> bool:
    return left.keys() == right.keys() and all(left[name].key() == right[name].key() for name in left)


def _with_parents(frame: Frame | None) -> Iterator[Frame]:
    while frame is not None:
        yield frame
        frame = frame.parent


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


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
