"""Works out what a call returns, and what the project must know about it."""

from __future__ import annotations

import ast

from hotlap.analysis.parse import torch_names
from hotlap.analysis.parse.calls import (
    BACKWARDS,
    beginning,
    container_method,
    event_name,
    given_counts,
    given_flags,
    holds_module,
    is_library,
    is_on_device,
    mark_module,
    mark_moving,
    mark_use,
    may_be_function,
    may_be_model,
    method_of_unknown,
    mode_set,
    named_result,
    names_host,
    prepared,
    result_of,
    runs_module,
    steps_given,
    to_host,
    updates,
)
from hotlap.analysis.parse.facts import Call, Function, Loop, Stack
from hotlap.analysis.parse.terms import HOST_DEVICE, MODULE, OPTIMIZER, TENSOR, TEXT, UNKNOWN, Term, element

_SUPER = ("name", "super")
_MAP = ("name", "map")
_NEXT = ("name", "next")
_GETATTR = ("name", "getattr")
_DEVICE = ("name", "torch.device")
_TYPES = ("dtype", "memory_format", "copy")
PUTS = frozenset(("append", "add", "extend", "insert", "update", "setdefault"))  # methods that put into a container


def _goes_along(given: list[Term]) -> bool:
    """Return whether a model and a device tensor are passed together: `run_forward(model=model, batch=batch)`."""
    return len(given) > 1 and any(map(holds_module, given)) and any(map(is_on_device, given))


class Reader:
    """What expressions need to know about their file. The implementation is in flow.py."""

    keep: dict[ast.AST, Term] | None = None
    places: dict[ast.AST, Stack]

    @property
    def names(self) -> dict[str, Term]:
        """The global names of the file."""
        raise NotImplementedError

    def lookup(self, name: str) -> Term:
        raise NotImplementedError

    def properties(self, owner: str) -> frozenset[str]:
        """Return the properties of a class of the file."""
        raise NotImplementedError

    def define_lambda(self, node: ast.Lambda, scope: ReadState) -> Term:
        raise NotImplementedError

    def assign_attribute(self, scope: ReadState, target: ast.Attribute, term: Term) -> None:
        raise NotImplementedError

    def put_attribute(self, scope: ReadState, container: ast.Attribute, term: Term) -> None:
        """Note `self.table[key] = …`."""
        raise NotImplementedError

    def register(self, scope: ReadState, node: ast.Call) -> None:
        raise NotImplementedError


class ReadState:
    """The state of reading one function. The reader's `keep` holds every term if rules will look them up."""

    def __init__(self, reader: Reader, function: Function, environment: dict[str, Term]) -> None:
        self.reader, self.keep = reader, reader.keep
        self.function = function
        self.names = environment
        self.stack: Stack = ()
        self.no_grad = function.no_grad
        self.loop_names: dict[str, int] = {}  # names that hold a loop's element, and the loop
        self.counters: set[str] = set()  # names that count the turns of a loop

    def term(self, node: ast.expr) -> Term:
        raise NotImplementedError

    def lookup(self, name: str) -> Term:
        raise NotImplementedError

    def attribute_of(self, base: Term, name: str) -> Term:
        raise NotImplementedError

    def _call(self, node: ast.Call) -> Term:
        function = node.func
        base: Term = UNKNOWN
        if isinstance(function, ast.Attribute):
            base = self.term(function.value)
            callee = self.attribute_of(base, function.attr)
            if self.keep is not None:
                self.keep[function] = callee
        else:
            callee = self.term(function)
        arguments = [self.term(argument) for argument in node.args]
        keywords = {word.arg or "**": self.term(word.value) for word in node.keywords}
        if self.keep is not None:
            self.reader.places[node] = self.stack
        self._notice(node, callee, arguments, keywords)
        if isinstance(function, ast.Attribute):
            found = self._method_result(node, function, base, arguments)
            if found is not None:
                return found
        result = self._of_python(node, callee, arguments) or self._result(callee, arguments, keywords)
        if result == OPTIMIZER:
            self.function.builds = True
        return result

    def _of_python(self, node: ast.Call, callee: Term, arguments: list[Term]) -> Term:
        """Return what super, getattr and torch.device return, judged by their literal arguments."""
        if callee == _SUPER and self.function.owner:
            return ("super", self.function.owner)
        if callee == _GETATTR and len(node.args) > 1:
            self.function.sends |= getattr(node.args[1], "id", "") in self.function.parameters
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
            if isinstance(name, str) and arguments[0][:1] == ("item",):  # getattr(hook, "on_step")()
                return self.attribute_of(arguments[0], name)
            if arguments[0][:1] == ("self",):
                return ("prefixed", arguments[0], beginning(node.args[1]))
        return HOST_DEVICE if callee == _DEVICE and names_host(node) else UNKNOWN

    def _notice(self, node: ast.Call, callee: Term, arguments: list[Term], keywords: dict[str, Term]) -> None:
        """Record what the project must know about the call, and mark the loop that trains."""
        if isinstance(node.func, ast.Attribute):
            self._notice_method(node, node.func, callee)
            self._notice_put(node.func, arguments)
        if not is_library(callee) or any(may_be_function(term) for term in (*arguments, *keywords.values())):
            given = tuple(keywords.items())
            known = Call(
                callee,
                node.lineno,
                self.stack,
                tuple(arguments),
                given,
                self.no_grad,
                given_flags(node),
                given_counts(node, self.counters) if self.counters else (),
                event_name(node),
            )
            self.function.calls.append(known)
            if callee == _MAP:
                self._notice_map(node, arguments)
        if callee == _NEXT and arguments and isinstance(arguments[0], tuple):
            next_method = ("attr", arguments[0], "__next__")
            self.function.calls.append(Call(next_method, node.lineno, self.stack, no_grad=self.no_grad))
        if self.loop_names:
            mark_use(node, self.loop_names, self.function.loops)
            self._mark_feeding(callee, arguments, keywords)
        if callee == MODULE and runs_module(node.func):
            self.function.models |= not self.no_grad
            self.function.places = True
            for frame in self.stack:
                if frame >= 0:
                    self.function.loops[frame].models = True
                    self.function.loops[frame].quiet |= self.no_grad

    def _notice_put(self, function: ast.Attribute, arguments: list[Term]) -> None:
        """Note `self.hooks.append(hook)`."""
        if function.attr not in PUTS or not arguments:
            return
        if isinstance(function.value, ast.Attribute):
            self.function.kept.append(arguments[-1])
            if function.attr in ("append", "add"):
                self.reader.put_attribute(self, function.value, arguments[-1])
        elif isinstance(function.value, ast.Name) and function.value.id not in self.names:
            self.function.kept.append(arguments[-1])

    def _notice_map(self, node: ast.Call, arguments: list[Term]) -> None:
        """Record that map(function, xs) calls the function with every x."""
        given = tuple(element(term) for term in arguments[1:])
        self.function.calls.append(Call(arguments[0], node.lineno, self.stack, given, (), self.no_grad))

    def _notice_method(self, node: ast.Call, function: ast.Attribute, callee: Term) -> None:
        name = function.attr
        if name in BACKWARDS:
            self._mark_training(callee)
            differentiated = node.args[0] if node.args else function.value  # accelerator.backward(loss)
            if isinstance(differentiated, ast.Name):
                self.names[differentiated.id] = TENSOR
        elif name in ("register_buffer", "register_parameter"):
            self.function.kept.append(TENSOR)
            self.reader.register(self, node)
        elif name in ("to", "cuda"):
            self.function.moves |= getattr(function.value, "id", "") in self.function.parameters
            self.function.places |= not to_host(node)
            mark_moving(function.value, self.loop_names, self.function.loops)
        elif mode_set(node, name):
            self._mark_module(function.value, mode_set(node, name))
        elif name == "step" and (updates(function.value, self.lookup) or steps_given(node)):
            self.function.updates = True
            loop = self._innermost()
            if loop is not None:
                loop.updates = True

    def _mark_module(self, receiver: ast.expr, method: str) -> None:
        self.function.evaluates = self.function.evaluates or method == "eval"
        if method != "train" and isinstance(receiver, ast.Attribute):
            self.reader.assign_attribute(self, receiver, MODULE)
        while isinstance(receiver, ast.Call) and isinstance(receiver.func, ast.Attribute):
            receiver = receiver.func.value  # model.to(device).eval()
        if isinstance(receiver, ast.Name):
            mark_module(self.names, receiver.id, self.lookup(receiver.id))

    def _mark_training(self, callee: Term) -> None:
        if isinstance(callee, tuple) and callee[0] == "attr" and callee[1][0] in ("super",):
            return
        loop = self._innermost()
        if loop is None:
            self.function.steps = True
        else:
            loop.trains = True

    def _mark_feeding(self, callee: Term, arguments: list[Term], keywords: dict[str, Term]) -> None:
        """Mark loops that pass device data to what may be a model, or pass it together with a model."""
        fed = may_be_model(callee) and any(map(is_on_device, arguments))
        if fed or (not is_library(callee) and _goes_along([*arguments, *keywords.values()])):
            for frame in self.stack:
                if frame >= 0:
                    self.function.loops[frame].feeds = True

    @property
    def here(self) -> int:
        """The number of the innermost loop around, or -1."""
        return next((frame for frame in reversed(self.stack) if frame >= 0), -1)

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
        return result_of(callee, arguments)

    def _method_result(self, node: ast.Call, function: ast.Attribute, base: Term, arguments: list[Term]) -> Term | None:
        name = function.attr
        if name == "type" and not node.args and not node.keywords:
            return TEXT  # its name; with an argument a tensor
        if name == "prepare" or name in ("setup", "setup_dataloaders"):
            found = prepared(base, arguments)
            if found is not None:
                return found
        if name == "to" and node.keywords and not node.args and all(word.arg in _TYPES for word in node.keywords):
            return base  # of another type, on the same device
        if isinstance(base, str):
            return torch_names.method(base, name, arguments, to_host(node) or HOST_DEVICE in arguments)
        if base[0] in ("list", "dict"):
            return container_method(self.names, function, base, arguments)
        if base[0] == "name":
            return None
        return method_of_unknown(base, name, to_host(node) or HOST_DEVICE in arguments)
