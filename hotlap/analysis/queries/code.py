"""Shows a rule one file: its calls, what they are, and how often they run."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from hotlap.analysis.frequency import modes
from hotlap.analysis.frequency.heat import COLD, Heat, Side
from hotlap.analysis.frequency.hotness import Hotness, LoopKind
from hotlap.analysis.frequency.per_file import per_file
from hotlap.analysis.frequency.single_evaluations import is_forgotten, is_tested
from hotlap.analysis.names.classes import Reference
from hotlap.analysis.names.host_only import keeps_to_host
from hotlap.analysis.names.project import Project
from hotlap.analysis.parse.facts import Function
from hotlap.analysis.parse.flow import FileReader, read_closely
from hotlap.analysis.parse.terms import FRAME, LOADER, LOADERS, MODULE, TENSOR, UNKNOWN, Term
from hotlap.analysis.parse.torch_names import method
from hotlap.analysis.parse.tree import FIELDS, walk
from hotlap.records.scan_finding import Confidence, Frequency

Definition = ast.FunctionDef | ast.AsyncFunctionDef
Repeated = ast.For | ast.AsyncFor | ast.While
_NO_GRAD = ("torch.no_grad", "torch.inference_mode", "torch.set_grad_enabled")
_SWITCHES = frozenset("no_grad inference_mode set_grad_enabled enable_grad nullcontext".split())
_NEVER = Heat(Frequency.NEVER, Confidence.HIGH, Side.TRAIN)


class Code:
    def __init__(
        self, path: str, text: str, tree: ast.Module, hotness: Hotness, reader: FileReader | None = None
    ) -> None:
        self.path, self.text, self.tree = path, text, tree
        self.lines = text.split("\n")
        self.hotness, self.project = hotness, hotness.project
        summary = self.project.files[path]
        reader = reader or read_closely(tree, path, summary.module, text, summary.package)
        self._terms, self._places, self._within = reader.keep or {}, reader.places, reader.within
        self.parents: dict[ast.AST, ast.AST] = {}
        self._by_type: dict[type, list[ast.AST]] = defaultdict(list)
        self._by_name: dict[str, list[ast.Call]] = defaultdict(list)
        self._index(tree, FIELDS[ast.Module])
        for call in self.all_calls():
            self._by_name[last_name(call.func)].append(call)
        self._heats: dict[ast.AST, Heat] = {}
        self._tested = is_tested(summary)
        self._forgotten: dict[str, bool] = {}
        self._stored: dict[ast.AST, frozenset[str]] = {}

    def _index(self, node: ast.AST, names: tuple[str, ...]) -> None:
        """Index parents, and nodes by type, in source order. Every node of the file is visited once."""
        known, parents, by_type = FIELDS, self.parents, self._by_type
        for name in names:
            value = getattr(node, name)
            if value is None:
                continue
            for child in value if value.__class__ is list else (value,):
                kind = child.__class__
                inner = known.get(kind)
                if inner is not None:
                    parents[child] = node
                    by_type[kind].append(child)
                    if inner:
                        self._index(child, inner)

    # Nodes

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls of these names, compared by their last part: `item`, `DataLoader`."""
        for name in names:
            yield from self._by_name.get(name, ())

    def all_calls(self) -> Iterator[ast.Call]:
        for node in self._by_type[ast.Call]:
            assert isinstance(node, ast.Call)
            yield node

    def nodes(self, *types: type[ast.AST]) -> Iterator[ast.AST]:
        for kind in types:
            yield from self._by_type.get(kind, ())

    def trains(self) -> bool:
        """Return whether a model is trained anywhere in the project."""
        return self.hotness.trains

    @cached_property
    def stays_on_host(self) -> bool:
        """Whether no read waits for a device, because neither the project nor the files around this one name any."""
        return self.project.stays_on_host or keeps_to_host(self.project, self.path)

    def project_uses(self, word: str) -> bool:
        """Return whether any file of the project uses this word. Only the few words listed in flow.py are recorded."""
        return any(word in summary.uses for summary in self.project.files.values())

    # Kinds

    def term(self, node: ast.AST) -> Term:
        return self.project.answer(self._terms.get(node, UNKNOWN), self.path)

    def asked(self, node: ast.AST) -> Term:
        """Return the term before the project resolves it; what a call may run depends on how its callee is reached."""
        return self._terms.get(node, UNKNOWN)

    def kind(self, node: ast.AST) -> str:
        """Return one of the kinds of hotlap.analysis.parse.terms, or "" when it is unknown."""
        return self.simple(self.term(node))

    def simple(self, term: Term) -> str:
        if isinstance(term, str):
            return term
        if term[0] == "join":
            kinds = {self.simple(part) for part in term[1:]}
            return kinds.pop() if len(kinds) == 1 else UNKNOWN
        if term[0] == "instance":
            owner = self.project.files[term[1]].classes[term[2]]
            if self.project.is_module(term[1], owner):
                return MODULE
            names = self.project.base_names(term[1], owner)
            if any(name.endswith("DataLoader") for name in names):
                return LOADER
            if any(name.endswith("DataFrame") for name in names):
                return FRAME
        return UNKNOWN

    def callee_kind(self, call: ast.Call) -> str:
        """Return the kind of what is called: MODULE only if the call runs the module, not for `model.eval()`."""
        if isinstance(call.func, ast.Attribute) and self.kind(call.func.value) == MODULE:
            return (
                MODULE
                if call.func.attr == "forward" or (self.kind(call.func) == MODULE and self.is_layer(call))
                else UNKNOWN
            )
        known = self.kind(call.func)
        return MODULE if not known and self.project.is_model(self.term(call.func)) else known

    def is_layer(self, call: ast.Call) -> bool:
        """Match `model.encoder(x)`, an attribute that is a module, but not a method such as `model.to(x)`."""
        assert isinstance(call.func, ast.Attribute)
        return method(MODULE, call.func.attr, [], on_host=False) == TENSOR

    def full_name(self, node: ast.AST) -> str:
        """Return the full name of something imported from a library, such as "torch.zeros", or "" for anything else."""
        term = self._terms.get(node, UNKNOWN)
        if not term and isinstance(node, ast.Attribute):
            base = self.full_name(node.value)
            return f"{base}.{node.attr}" if base else ""
        return str(term[1]) if isinstance(term, tuple) and term[0] == "name" else ""

    # Surroundings

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self.parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        here = self.parents.get(node)
        while here is not None:
            yield here
            here = self.parents.get(here)

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node is part of."""
        if isinstance(node, ast.stmt):
            return node
        return next(outer for outer in self.ancestors(node) if isinstance(outer, ast.stmt))

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the list of statements that contains this one."""
        parent = self.parents[statement]
        for field in ("body", "orelse", "finalbody", "handlers"):
            found = getattr(parent, field, None)
            if isinstance(found, list) and statement in found:
                return found
        return [statement]

    def function(self, node: ast.AST) -> Definition | None:
        return next((outer for outer in self.ancestors(node) if isinstance(outer, Definition)), None)

    def stored(self, scope: ast.AST) -> frozenset[str]:
        """Return the names that are set anywhere in a function or loop."""
        known = self._stored.get(scope)
        if known is None:
            every = (node for node in walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
            known = self._stored[scope] = frozenset(node.id for node in every)
        return known

    def loops(self, node: ast.AST) -> Iterator[Repeated]:
        """Yield the loops around a node within its function, the innermost first."""
        for outer in self.ancestors(node):
            if isinstance(outer, Definition | ast.Lambda):
                return
            if isinstance(outer, Repeated):
                yield outer

    def batch_loop(self, node: ast.AST) -> Repeated | None:
        """Return the innermost loop over batches around a node within its function, if there is one."""
        return next((loop for loop in self.loops(node) if self.is_batch_loop(loop)), None)

    def is_batch_loop(self, loop: Repeated) -> bool:
        return self.loop_kind(loop) >= LoopKind.BATCH_LIKELY

    def goes_over_batches(self, node: ast.ListComp | ast.GeneratorExp) -> bool:
        """Return whether the first `for` of a comprehension iterates over a loader."""
        over = node.generators[0].iter
        function = self._reader_function(node)
        kinds = self.hotness.kinds.get(Reference(self.path, function.name), ()) if function is not None else ()
        for number, kind in enumerate(kinds):
            assert function is not None
            if function.loops[number].comprehension and function.loops[number].line == over.lineno:
                return kind >= LoopKind.BATCH_LIKELY
        return self.kind(over) in LOADERS

    def takes_pieces(self, loop: Repeated) -> bool:
        """Match a loop over slices of one sequence, `range(0, n, size)` or `rows[i * size : (i + 1) * size]`, or over a
        list whose entries the loop moves to a device one by one."""
        function = self._within.get(loop)
        first = loop.test if isinstance(loop, ast.While) else loop.iter
        return function is not None and any(
            record.line == first.lineno and (record.strided or record.moves) for record in function.loops
        )

    def loop_kind(self, loop: Repeated) -> LoopKind:
        function = self._within.get(loop)
        kinds = self.hotness.kinds.get(Reference(self.path, function.name)) if function else None
        first = loop.test if isinstance(loop, ast.While) else loop.iter
        for number, record in enumerate(function.loops if function else ()):
            if record.line == first.lineno and not record.comprehension and kinds:
                return kinds[number]
        return LoopKind.PLAIN

    def under_no_grad(self, loop: Repeated) -> bool:
        """Return whether a loop records no graph: by itself, by its function, or by all callers of that function."""
        function = self._within.get(loop)
        if function is None:
            return False
        first = loop.test if isinstance(loop, ast.While) else loop.iter
        if any(record.line == first.lineno and record.no_grad for record in function.loops):
            return True
        inside = any(isinstance(node, ast.With) and self._records_nothing(node) for node in walk(loop))
        around = any(isinstance(node, ast.With) and self._records_nothing(node) for node in self.ancestors(loop))
        return (
            inside
            or around
            or modes.under_no_grad(self.project, self.hotness.callers, Reference(self.path, function.name))
        )

    def _records_nothing(self, node: ast.With) -> bool:
        """Match `no_grad` and its like, and contexts of the project that yield under one."""
        for item in node.items:
            entered = getattr(item.context_expr, "func", item.context_expr)
            if self.full_name(entered) in _NO_GRAD:
                return True
            if any(
                self.project.function(target).quiets for target in self.project.targets(self.asked(entered), self.path)
            ):
                return True
        return False

    def is_quiet(self, node: ast.AST) -> bool:
        """Return whether a node records no graph: by a `with`, by its function, or by all callers of that function."""
        for outer in self.ancestors(node):
            if isinstance(outer, ast.With) and self._records_nothing(outer):
                return True
            if isinstance(outer, Definition | ast.Lambda):
                break
        known = self.reference(node)
        return known is not None and modes.under_no_grad(self.project, self.hotness.callers, known)

    def mentions_grad(self, scope: ast.AST) -> bool:
        """Return whether gradients are switched on or off anywhere in the scope."""
        return any(isinstance(node, ast.Name | ast.Attribute) and last_name(node) in _SWITCHES for node in walk(scope))

    def reference(self, node: ast.AST) -> Reference | None:
        """Return the function that a node is in."""
        function = self._reader_function(node)
        return Reference(self.path, function.name) if function is not None else None

    def in_module(self, node: ast.AST) -> bool:
        """Return whether a node is in a method of an nn.Module of the project."""
        known = self.reference(node)
        owner = self.project.files[self.path].classes.get(known.name.rpartition(".")[0]) if known else None
        return owner is not None and self.project.is_module(self.path, owner)

    def put_to_eval(self, node: ast.AST) -> bool:
        known = self.reference(node)
        return known is not None and modes.put_to_eval(self.project, self.hotness.callers, known)

    # Frequency

    def heat(self, node: ast.AST) -> Heat:
        known = self._heats.get(node)
        if known is None:
            known = self._heats[node] = self._heat(node)
        return known

    def _heat(self, node: ast.AST) -> Heat:
        here: ast.AST | None = node
        while here is not None and here not in self._places:
            if isinstance(here, ast.stmt):
                return _NEVER  # never read: the statement is unreachable
            here = self.parents.get(here)
        if here is None:
            return COLD
        known = self._heats.get(here)
        return known if known is not None else self._heat_at(here)

    def _heat_at(self, place: ast.AST) -> Heat:
        function = self._reader_function(place)  # by the place: a lambda's default is read outside the lambda
        if function is None or self._is_redefined(function):
            return COLD
        known, stack = Reference(self.path, function.name), self._places[place]
        found = self.hotness.at(known, stack) or per_file(self.hotness, known, stack) or COLD
        if self._tested or (found.hot and self._is_forgotten(function)):  # nobody waits for tests
            found = found._replace(confidence=Confidence.LOW)
        self._heats[place] = found
        return found

    def _is_forgotten(self, function: Function) -> bool:
        if function.name not in self._forgotten:
            self._forgotten[function.name] = is_forgotten(self.hotness, Reference(self.path, function.name))
        return self._forgotten[function.name]

    def _is_redefined(self, function: Function) -> bool:
        """Return whether a later function took over the name; the project knows only the last one."""
        known = self.project.files[self.path].functions.get(function.name)
        return known is None or known.line != function.line

    def _reader_function(self, node: ast.AST) -> Function | None:
        here: ast.AST | None = node
        while here is not None and here not in self._within:
            here = self.parents.get(here)
        return self._within.get(here) if here is not None else None

    def hot(self, node: ast.AST) -> bool:
        """Return whether a node runs at least once per batch, outside of data loading."""
        heat = self.heat(node)
        return heat.hot and heat.side is not Side.LOAD


def last_name(node: ast.expr) -> str:
    """Return `c` for `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((word.value for word in call.keywords if word.arg == name), None)


def is_constant(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def spread(call: ast.Call) -> bool:
    """Return whether some arguments come from `*args` or `**kwargs`, whose contents are unknown."""
    return any(word.arg is None for word in call.keywords) or any(
        isinstance(argument, ast.Starred) for argument in call.args
    )


__all__ = ["Code", "Project", "is_constant", "keyword", "last_name", "spread"]
