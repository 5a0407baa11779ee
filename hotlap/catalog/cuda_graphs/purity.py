"""Whether a function of the user's may be replayed: it must compute with its arguments and constants, nothing else.

This is read from its bytecode and from that of the functions it calls; nothing is run. Whatever is not known to be
harmless is refused.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import math
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from hotlap.runtime.decline import EntryDeclined

PLAIN = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))
HARMLESS = frozenset(
    "abs all any bool dict divmod enumerate float frozenset getattr hasattr int isinstance issubclass len list map max "
    "min pow range reversed round set slice sorted str sum tuple type zip filter".split()
)
LEAVE_BEHIND = {
    "STORE_GLOBAL": "sets a global variable", "DELETE_GLOBAL": "deletes a global variable",
    "STORE_ATTR": "sets an attribute", "DELETE_ATTR": "deletes an attribute", "IMPORT_NAME": "imports a module",
    "LOAD_NAME": "looks names up at run time", "LOAD_BUILD_CLASS": "defines a class",
}  # fmt: skip
# Attributes of tensors or of torch whose effects reach beyond the computed numbers.
REACH_OUT = frozenset(
    "backward data load manual_seed register_hook retain_grad save seed set_default_device set_default_dtype "
    "set_num_threads set_rng_state use_deterministic_algorithms".split()
)
GENERATES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Constants:
    """A snapshot of what a function and those it calls read besides their arguments."""

    def __init__(self, torch: Any, function: FunctionType) -> None:
        self._torch = torch
        self._held: list[tuple[dict[str, Any], str, Any]] = []
        self._functions: list[tuple[FunctionType, CodeType]] = []
        self.tensors: list[Any] = []
        self._read(function)
        self._addresses = [tensor.data_ptr() for tensor in self.tensors]

    def hold(self) -> bool:
        """Whether all of it is unchanged. The numbers in a tensor may change: a replay reads them in place."""
        return (
            all([names.get(name) is value for names, name, value in self._held])  # noqa: C419 a list is faster
            and all([function.__code__ is code for function, code in self._functions])  # noqa: C419
            and [tensor.data_ptr() for tensor in self.tensors] == self._addresses
        )

    def _read(self, function: FunctionType) -> None:
        if any(function is known for known, _ in self._functions):
            return
        self._functions.append((function, function.__code__))
        name = function.__name__
        if function.__closure__:
            raise EntryDeclined(f"{name} uses variables of its enclosing function")
        if function.__code__.co_flags & GENERATES:
            raise EntryDeclined(f"{name} is a generator")
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._check(f"a default of {name}", value)
        self._read_code(name, function.__code__, function.__globals__)

    def _read_code(self, name: str, code: CodeType, names: dict[str, Any]) -> None:
        holder: Any = None  # the module whose attribute the next instruction takes
        for instruction in dis.get_instructions(code):
            word, operation = instruction.argval, instruction.opname
            if operation in LEAVE_BEHIND:
                raise EntryDeclined(f"{name} {LEAVE_BEHIND[operation]}")
            if operation in ("PRECALL", "CACHE", "PUSH_NULL"):
                continue
            takes = operation in ("LOAD_ATTR", "LOAD_METHOD")
            if takes and word in REACH_OUT:
                raise EntryDeclined(f"{name} uses .{word}")
            if takes and holder is not None:
                holder = self._member(name, holder, str(word))
            elif operation == "LOAD_GLOBAL":
                holder = self._global(name, names, str(word))
            else:
                holder = None
        for constant in code.co_consts:
            if isinstance(constant, CodeType):  # a comprehension, a lambda, a function in it
                self._read_code(name, constant, names)

    def _global(self, name: str, names: dict[str, Any], word: str) -> Any:
        if word not in names:
            value = getattr(builtins, word, None)
            if word not in HARMLESS and not (isinstance(value, type) and issubclass(value, BaseException)):
                raise EntryDeclined(f"{name} uses {word}")
            return None
        return self._taken(f"{word} of {name}", names, word)

    def _member(self, name: str, module: ModuleType, word: str) -> Any:
        if word not in vars(module):
            raise EntryDeclined(f"{name} uses {module.__name__}.{word}, which does not exist")
        return self._taken(f"{module.__name__}.{word} of {name}", vars(module), word)

    def _taken(self, what: str, names: dict[str, Any], word: str) -> Any:
        value = names[word]
        self._held.append((names, word, value))
        return self._check(what, value)

    def _check(self, what: str, value: Any) -> Any:
        """Return the value if it is a module of the user's, whose members are still to be checked; else None."""
        if isinstance(value, ModuleType):
            return None if value is math or self._is_torch(value.__name__) else value
        if isinstance(value, FunctionType):
            if not self._is_torch(value.__module__):
                self._read(value)
        elif isinstance(value, self._torch.Tensor):
            if type(value) is not self._torch.Tensor or value.requires_grad:
                raise EntryDeclined(f"{what} is trained, or is a tensor subclass")
            self.tensors.append(value)
        elif not self._is_constant(value):
            raise EntryDeclined(f"{what} is {type(value).__name__}, which may hold or do anything")
        return None

    def _is_constant(self, value: Any) -> bool:
        torch = self._torch
        if isinstance(value, tuple | frozenset):
            return all(self._is_constant(element) for element in value)
        if isinstance(value, BuiltinFunctionType):
            places = (math, torch, torch.nn.functional, torch._C._nn, torch.special, torch.linalg, torch.fft)
            return any(getattr(place, value.__name__, None) is value for place in places)
        if isinstance(value, type):
            return self._is_torch(value.__module__) or issubclass(value, BaseException)
        return isinstance(value, PLAIN) or type(value) in (torch.dtype, torch.device, torch.memory_format, torch.layout)

    @staticmethod
    def _is_torch(name: str | None) -> bool:
        return (name or "").partition(".")[0] == "torch"
