"""Reads one file into a summary: its functions, statement by statement, with loops and guards."""

from __future__ import annotations

import ast

from hotlap.analysis.parse import statements, torch_names
from hotlap.analysis.parse.annotations import annotated
from hotlap.analysis.parse.body import Body, FileState
from hotlap.analysis.parse.call_values import ReadState
from hotlap.analysis.parse.calls import is_library, last_name
from hotlap.analysis.parse.facts import Call, Class, Function, Stack, Summary
from hotlap.analysis.parse.features import features
from hotlap.analysis.parse.forwarded_keywords import keyword_forwardings
from hotlap.analysis.parse.terms import (
    DEEPEST,
    DEVICE,
    HOST_DEVICE,
    MODULE,
    NUMBER,
    TENSOR,
    TEXT,
    UNKNOWN,
    Term,
    depth,
    join,
)
from hotlap.analysis.parse.words import Words

_TABLE = ("dict", UNKNOWN)
_COUNTS = frozenset(  # arguments that count batches, by their names
    "batch_idx batch_index batch_id batch_num batch_number batch_i i_batch step step_idx global_step iteration "
    "iter_num iter_idx n_iter itr".split()
)
_QUIET = ("no_grad", "nograd", "inference_mode")  # how decorators that record no graph are named
_FEATURES = (".cuda", "cuda", "mps", "non_blocking", "fused", "tpu")


def read(tree: ast.Module, path: str, module: str, text: str, package: bool = False) -> Summary:
    """Return the summary of a file, in time linear in its size."""
    return FileReader(tree, path, module, package).run(text)


def read_closely(tree: ast.Module, path: str, module: str, text: str, package: bool = False) -> FileReader:
    """Read a file and keep the term of every expression for the rules."""
    reader = FileReader(tree, path, module, package)
    reader.keep = {}
    reader.run(text)
    return reader


class FileReader(FileState):
    def __init__(self, tree: ast.Module, path: str, module: str, package: bool = False) -> None:
        self.tree = tree
        self.backward: list[int] = []  # the lines that may make a backward pass, of a file that makes one
        self.past_top = False  # the contents of the file's tables are known only once all functions are read
        self.summary = Summary(path, module, package)
        self.places: dict[ast.AST, Stack] = {}
        self.within: dict[ast.AST, Function] = {}  # the function that a statement is in; filled only if terms are kept
        self.puts: dict[tuple[str, str], Term] = {}  # what is put into mappings and lists that objects hold
        self.waiting: list[tuple[Function, ast.AST, Body]] = []
        self.words = Words("")

    def run(self, text: str = "") -> Summary:
        top = Function("", 1)
        self.summary.functions[""] = top
        self.words = Words(text)
        if "backward(" in text:
            self.backward = [number for number, line in enumerate(text.split("\n"), 1) if "backward" in line]
        self.summary.uses = frozenset(word for word in _FEATURES if word in self.words) | features(self.words)
        body = Body(self, top, self.summary.names, None)
        body.block(self.tree.body)
        self.past_top = True
        while self.waiting:
            function, node, scope = self.waiting.pop()
            self._read_function(function, node, scope)
        self._fill_attributes()
        return self.summary

    @property
    def names(self) -> dict[str, Term]:
        return self.summary.names

    def lookup(self, name: str) -> Term:
        found = self.summary.names.get(name)
        if found is not None:
            return ("held", name) if found == _TABLE and self.past_top else found
        if name in torch_names.BUILTINS:
            return ("name", name)
        if name in ("torch", "math"):  # bound in a way that cannot be seen
            return ("name", name)
        if not self._imports_all():
            return UNKNOWN
        usual = torch_names.USUAL.get(name)
        return ("name", usual) if usual is not None else ("star", name)

    def _imports_all(self) -> bool:
        """Return whether the file has a star import, such as `from common import *`, which may bring torch."""
        return any(name[0] == "*" for name in self.summary.names)

    def _read_function(self, function: Function, node: ast.AST, scope: Body) -> None:
        names: dict[str, Term] = {}
        for number, parameter in enumerate(function.parameters):
            annotated = function.annotations[number]
            names[parameter] = (
                annotated if isinstance(annotated, str) and annotated else ("param", function.name, number)
            )
        if function.owner and function.name.endswith(".forward"):
            used = statements.used_as_tensors(node, function.parameters[1:])
            names.update({name: TENSOR for name in used if names[name] not in (NUMBER, TEXT)})  # `mask: bool = True`
        if function.rest:
            names[function.rest] = ("list", ("rest", function.name))
        names.update(statements.hook_arguments(function))
        if function.owner and function.parameters and not statements.is_static(function):
            names[function.parameters[0]] = ("self", function.owner)
        outer = scope if scope.function.name else None
        body = Body(self, function, names, outer)
        body.counters.update(_COUNTS.intersection(function.parameters))
        last = getattr(node, "end_lineno", None) or function.line
        if any(function.line <= line <= last for line in self.backward):
            body.losses = statements.losses(node)
        if isinstance(node, ast.Lambda):
            function.returns = body.term(node.body)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body.block(node.body)
            function.forwardings = keyword_forwardings(node, body.plain)

    def define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Body) -> None:
        owner = scope.owner
        name = statements.qualified(scope.owner, scope.function, node.name)
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        decorators = tuple(_decorator(decorator, scope) for decorator in node.decorator_list)
        name = statements.free_name(self.summary.functions, name, node.lineno, decorators)
        function = Function(
            name, node.lineno, owner, tuple(argument.arg for argument in every),
            tuple(annotated(argument.annotation, scope.plain) for argument in every),
            len(arguments.kwonlyargs), decorators=decorators,
            no_grad=any(full.lower().endswith(_QUIET) for full, _ in decorators),
        )  # fmt: skip
        function.rest = arguments.vararg.arg if arguments.vararg is not None else ""
        self.summary.functions[name] = function
        self._read_defaults(function, arguments, scope)
        function.flags = statements.default_flags(arguments)
        self._read_decorators(node, ("def", name), scope)
        if not owner:
            scope.names[node.name] = ("def", name)
        self.waiting.append((function, node, scope))

    def _read_decorators(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, made: Term, scope: Body
    ) -> None:
        """Note that a decorator gets what it decorates: `@register("name")` may put it into a table."""
        for outside in node.decorator_list:
            term = scope.term(outside)
            if isinstance(term, tuple) and not is_library(term):
                scope.function.calls.append(Call(term, node.lineno, scope.stack, (made,)))

    def _read_defaults(self, function: Function, arguments: ast.arguments, scope: Body) -> None:
        first = len(arguments.posonlyargs) + len(arguments.args)
        numbers = range(first - len(arguments.defaults), first + len(arguments.kw_defaults))
        every = zip(numbers, (*arguments.defaults, *arguments.kw_defaults), strict=True)
        terms = [(number, scope.term(default)) for number, default in every if default is not None]
        for number, default in zip(numbers, (*arguments.defaults, *arguments.kw_defaults), strict=True):
            if function.parameters[number] == "non_blocking" and getattr(default, "value", True) is False:
                function.waits = number + 1
        function.defaults = tuple((number, term) for number, term in terms if term == MODULE or isinstance(term, tuple))

    def properties(self, owner: str) -> frozenset[str]:
        return self.summary.classes[owner].properties

    def define_lambda(self, node: ast.Lambda, scope: ReadState) -> Term:
        name = f"{scope.function.name}.<lambda:{node.lineno}:{node.col_offset}>"
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        function = Function(name, node.lineno, "", tuple(argument.arg for argument in every), (UNKNOWN,) * len(every))
        self.summary.functions[name] = function
        self.within[node] = function
        if isinstance(scope, Body):
            self.waiting.append((function, node, scope))
        return ("def", name)

    def define_class(self, node: ast.ClassDef, scope: Body) -> None:
        name = statements.qualified(scope.owner, scope.function, node.name)
        bases = tuple(scope.term(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases)
        short = tuple(last_name(base) for base in node.bases)
        methods = frozenset(
            statement.name for statement in node.body if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
        )
        made = Class(name, node.lineno, bases, short, methods, statements.properties(node))
        self.summary.classes[name] = made
        scope.names[node.name] = ("def", name)
        self._read_decorators(node, ("def", name), scope)
        inner = Body(self, scope.function, {}, scope)
        inner.owner = name
        inner.stack = scope.stack
        inner.block(node.body)
        for key, term in inner.names.items():
            made.attributes.setdefault(key, term)

    def register(self, scope: ReadState, node: ast.Call) -> None:
        """Note `self.register_buffer("name", …)`."""
        function = node.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and node.args:
            owner, name = scope.lookup(function.value.id), node.args[0]
            if isinstance(owner, tuple) and owner[0] == "self" and isinstance(name, ast.Constant):
                self.summary.classes[owner[1]].attributes[str(name.value)] = TENSOR

    def put_attribute(self, scope: ReadState, container: ast.Attribute, term: Term) -> None:
        owner = scope.lookup(container.value.id) if isinstance(container.value, ast.Name) else UNKNOWN
        if isinstance(owner, tuple) and owner[0] == "self":
            key = (owner[1], container.attr)
            self.puts[key] = join(self.puts.get(key, UNKNOWN), term)

    def _fill_attributes(self) -> None:
        """Fill mappings and lists once every method is read; only then is it known which attributes are any."""
        for (owner, name), term in self.puts.items():
            attributes = self.summary.classes[owner].attributes
            known = attributes.get(name, UNKNOWN)
            if isinstance(known, tuple) and known[0] in ("dict", "list") and depth(term) < DEEPEST - 1:
                attributes[name] = (known[0], join(known[1], term))

    def assign_attribute(self, scope: ReadState, target: ast.Attribute, term: Term) -> None:
        base = target.value
        if isinstance(base, ast.Name):
            owner = scope.lookup(base.id)
            if isinstance(owner, tuple) and owner[0] == "self" and term != ("moved", ("attr", owner, target.attr)):
                term = DEVICE if term == HOST_DEVICE else term  # may be set to another device elsewhere
                attributes = self.summary.classes[owner[1]].attributes
                attributes[target.attr] = join(attributes.get(target.attr, UNKNOWN), term)


def _decorator(node: ast.expr, scope: Body) -> tuple[str, tuple[str, ...]]:
    given: tuple[str, ...] = ()
    if isinstance(node, ast.Call):
        given = tuple(ast.unparse(argument) for argument in (*node.args, *(word.value for word in node.keywords)))
        given += tuple(word.arg or "" for word in node.keywords)
        node = node.func
    term = scope.plain(node)
    full = term[1] if isinstance(term, tuple) and term[0] == "name" else statements.dotted(node)
    return str(full), given
