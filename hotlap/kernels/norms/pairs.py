"""Which activation directly follows which batch normalisation, found in the source without running it.

Two forms are known: neighbours in an nn.Sequential, and `self.act(self.norm(…))` in the forward of a module that uses
neither of them anywhere else. In both only the activation sees the output of the normalisation, as long as their own
module runs them: code that calls the layers of an nn.Sequential one by one gets the output of each.
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

from hotlap.kernels.norms.layer import BatchNorm2d, Behind

FUSED = "_fused_norms"  # names of the layers, stored in the module they are in
KINDS: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.SiLU: "silu"}
HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip
BY_OTHER_NAMES = ("getattr", "children", "named_children", "modules", "named_modules", "_modules", "get_submodule")


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
    """Build the activation into each BatchNorm2d that it directly follows; return how many."""
    found = list(pairs(model))
    for pair in found:
        norm = BatchNorm2d.of(pair.layer, pair.kind)
        norm.activates = 0
        pair.parent._modules[pair.norm], pair.parent._modules[pair.activation] = norm, Behind(pair.kind)
        names: Any = vars(pair.parent).get(FUSED)
        if names is None:
            pair.parent.register_forward_pre_hook(_enter)
            pair.parent.register_forward_hook(_leave, always_call=True)
        setattr(pair.parent, FUSED, (*(names or ()), (pair.norm, pair.activation)))
    return len(found)


def _enter(module: nn.Module, args: Any) -> None:
    _switch(module, 1)


def _leave(module: nn.Module, args: Any, made: Any) -> None:
    _switch(module, -1)


def _switch(module: Any, by: int) -> None:
    """Switch the pairs of a module; if one of the two has been replaced since, the other does its own part only."""
    for name, activation in getattr(module, FUSED):
        norm, behind = module._modules.get(name), module._modules.get(activation)
        if isinstance(norm, BatchNorm2d) and isinstance(behind, Behind):
            norm.activates += by
            behind.passes += by


def pairs(model: nn.Module) -> Iterator[Pair]:
    """Yield the pairs that nothing else uses or watches."""
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
            if users[id(first)] == users[id(second)] == 1 and not (is_watched(first) or is_watched(second)):
                yield Pair(module, norm, activation, kind)


def _neighbours(module: nn.Module) -> Iterator[tuple[str, str]]:
    kind: Any = type(module)
    if "forward" in vars(module) or not any(type(child) is nn.BatchNorm2d for child in module._modules.values()):
        return
    if inspect.unwrap(kind.forward) is inspect.unwrap(nn.Sequential.forward):
        yield from pairwise(module._modules)
    else:
        yield from _nested(kind, inspect.unwrap(kind.forward))


def is_watched(module: Any) -> bool:
    """Return whether hooks see the module's outputs, or its forward was replaced."""
    return any(getattr(module, name, None) for name in HOOKS) or "forward" in vars(module)


@cache
def _nested(kind: Any, forward: Any) -> tuple[tuple[str, str], ...]:
    """Return (norm, activation) of each `self.activation(self.norm(…))` in this forward, if the class uses neither
    anywhere else.
    """
    try:
        body = _parsed(forward)
        functions = [_parsed(function) for function in _functions(kind) if function is not forward]
    except (OSError, TypeError, SyntaxError):
        return ()
    uses: dict[str, int] = {}
    for tree in (body, *functions):
        for node in ast.walk(tree):
            if _name(node) in BY_OTHER_NAMES:
                return ()
            used = _of_self(node)
            if used is not None:
                uses[used] = uses.get(used, 0) + 1
    found = [pair for node in ast.walk(body) if (pair := _pair(node)) is not None]
    return tuple((norm, activation) for norm, activation in found if uses[norm] == uses[activation] == 1)


def _functions(kind: Any) -> Iterator[Any]:
    """Yield all functions that the class can call, except its constructor and torch's own."""
    for base in kind.__mro__:
        if base in (nn.Module, object):
            continue
        for name, value in vars(base).items():
            made = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if name != "__init__" and inspect.isfunction(made):
                yield inspect.unwrap(made)


def _parsed(function: Any) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def _name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _of_self(node: ast.AST | None) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr
    return None


def _pair(node: ast.AST) -> tuple[str, str] | None:
    """Return (norm, activation) of `self.activation(self.norm(…))`."""
    if not (isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords):
        return None
    inner = node.args[0]
    outer_name, inner_name = _of_self(node.func), _of_self(inner.func) if isinstance(inner, ast.Call) else None
    return None if outer_name is None or inner_name is None else (inner_name, outer_name)
