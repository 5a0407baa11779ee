"""Which activation directly follows which batch normalisation, told from the source without running it.

Two forms are known: neighbours in an nn.Sequential, and `self.act(self.norm(…))` in the forward of a module that uses
either of them nowhere else. In both nobody but the activation sees what the normalisation made, as long as it is the
module they are in that runs them: who takes the layers of an nn.Sequential one by one gets what each of them makes.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from torch import nn

from hotlap.engine.norms.layer import BatchNorm2d, Behind

FUSED = "_fused_norms"  # names of the layers, kept in the module they are in
KINDS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.SiLU: "silu"}


class Pair(NamedTuple):
    parent: nn.Module
    norm: str
    activation: str  # names among the parent's modules
    kind: str  # as in norm.cu

    @property
    def layer(self) -> Any:
        return self.parent._modules[self.norm]

    @property
    def behind(self) -> Any:
        return self.parent._modules[self.activation]


def fuse_norms(model: nn.Module) -> int:
    """Puts BatchNorm2d with its activation built in where the two follow each other; how often."""
    found = list(pairs(model))
    for one in found:
        norm = BatchNorm2d.of(one.layer, one.kind)
        norm.activates = False
        one.parent._modules[one.norm], one.parent._modules[one.activation] = norm, Behind(one.kind)
        names: Any = vars(one.parent).get(FUSED)
        if names is None:
            one.parent.register_forward_pre_hook(_enter)
            one.parent.register_forward_hook(_leave, always_call=True)
        setattr(one.parent, FUSED, (*(names or ()), (one.norm, one.activation)))
    return len(found)


def _enter(module: nn.Module, args: Any) -> None:
    _switch(module, True)


def _leave(module: nn.Module, args: Any, made: Any) -> None:
    _switch(module, False)


def _switch(module: Any, inside: bool) -> None:
    for norm, activation in vars(module)[FUSED]:
        module._modules[norm].activates = inside
        module._modules[activation].passes = inside


def pairs(model: nn.Module) -> Iterator[Pair]:
    """Of those that nothing else uses or watches."""
    users: dict[int, int] = {}
    for module in model.modules():
        for child in module._modules.values():
            users[id(child)] = users.get(id(child), 0) + 1
    for module in model.modules():
        for norm, activation in _neighbours(module):
            first, second = module._modules.get(norm), module._modules.get(activation)
            kind = KINDS.get(type(second)) if second is not None else None
            if first is None or second is None or kind is None or type(first) is not nn.BatchNorm2d:
                continue
            if users[id(first)] == users[id(second)] == 1 and not (_is_watched(first) or _is_watched(second)):
                yield Pair(module, norm, activation, kind)


def _neighbours(module: nn.Module) -> Iterator[tuple[str, str]]:
    if type(module).forward is nn.Sequential.forward:
        names = list(module._modules)
        yield from pairwise(names)
    elif "forward" not in vars(module):
        kind: Any = type(module)
        yield from _nested(kind)


def _is_watched(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


@cache
def _nested(kind: Any) -> tuple[tuple[str, str], ...]:
    """(norm, activation) of each `self.activation(self.norm(…))`, where the class uses neither anywhere else."""
    try:
        bodies = [ast.parse(textwrap.dedent(inspect.getsource(one))) for one in kind.__mro__ if _is_written(one)]
    except (OSError, TypeError, SyntaxError):
        return ()
    uses: dict[str, int] = {}
    found = []
    for body in bodies:
        for node in _outside_of_init(body):
            name = _of_self(node)
            if name is not None:
                uses[name] = uses.get(name, 0) + 1
            pair = _pair(node)
            if pair is not None:
                found.append(pair)
    return tuple((norm, activation) for norm, activation in found if uses[norm] == uses[activation] == 1)


def _is_written(kind: type[Any]) -> bool:
    """By the user."""
    return kind not in (nn.Module, object)


def _outside_of_init(body: ast.Module) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


def _of_self(node: ast.AST | None) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return None


def _pair(node: ast.AST) -> tuple[str, str] | None:
    """(norm, activation) of self.activation(self.norm(…))"""
    if not (isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords):
        return None
    inner = node.args[0]
    outer_name, inner_name = _of_self(node.func), _of_self(inner.func) if isinstance(inner, ast.Call) else None
    return None if outer_name is None or inner_name is None else (inner_name, outer_name)
