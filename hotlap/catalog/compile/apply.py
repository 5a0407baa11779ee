"""Compile the forward of each root module for the inputs it sees most; other calls run unchanged.

One shape is compiled, and only for training. A smaller last batch would compile everything again, for seconds, to run
once an epoch, so it runs eagerly. So does evaluation, whose results are then the user's to the bit.
"""

from __future__ import annotations

import inspect
import types
from functools import partial
from typing import Any

from hotlap.catalog.compile.attempt import (
    Before,
    CompiledForward,
    FirstCall,
    Graphs,
    NotWorthIt,
    backward_at_once,
    near,
)
from hotlap.loading.identity import ByIdentity
from hotlap.patch.roots import is_compiled
from hotlap.runtime.forwards import call_with, is_wrapper
from hotlap.runtime.other_threads import why_not_alone
from hotlap.runtime.silence import silenced
from hotlap.runtime.site import Site

SEEN_OFTEN = 2  # calls with the same kind of inputs before compiling for them
DIFFERENT = 24  # kinds of input, none of them seen often, before giving up
LOOKED_AT = 3  # calls in which code may be compiled; after them, anything new runs eagerly


def apply(site: Site) -> None:
    compiled = CompiledRoots(site)
    site.when_root(compiled.known)
    site.stand_in(site.seams.calling, compiled.called)
    site.before(site.seams.backward, compiled.backward_begins)
    site.after(site.seams.backward, compiled.backward_ends)


def why_not(torch: Any, module: Any) -> str | None:
    """Return why this root cannot gain from being compiled, or None."""
    name = type(module).__name__
    if is_compiled(module):
        return f"{name} is compiled already"
    if is_wrapper(module):
        return f"{name} spreads the model over devices or processes"
    if isinstance(module, torch.jit.ScriptModule):
        return f"{name} is scripted"
    if any(is_compiled(child) for child in module.modules()):
        return f"parts of {name} are compiled already"
    recurrent = [child for child in module.modules() if isinstance(child, torch.nn.RNNBase)]
    inside = sum(parameter.numel() for child in recurrent for parameter in child.parameters())
    share = inside / max(1, sum(parameter.numel() for parameter in module.parameters()))
    if share > 0.5:
        return f"Dynamo skips nn.{type(recurrent[0]).__name__}, which holds {share:.0%} of the parameters"
    return None


def most_recompiles(torch: Any) -> int:
    """Return Dynamo's limit for one function; torch 2.6 knows it by its older name only."""
    config = torch._dynamo.config
    return int(config.recompile_limit if hasattr(config, "recompile_limit") else config.cache_size_limit)


class CompiledRoots:
    def __init__(self, site: Site) -> None:
        self.site, self.torch = site, site.torch
        self._roots: ByIdentity[Root] = ByIdentity()
        self._compiled: dict[Any, CompiledForward] = {}  # by forward
        self._compiling: Root | None = None
        site.ledger.later(self._roots.clear)
        site.ledger.later(self._compiled.clear)

    def known(self, module: Any) -> None:
        why = why_not(self.torch, module)
        if why is not None:
            self.site.no_effect(why)
        else:
            keep_buffers(self.site)
            self._roots.put(module, Root(self.site, module, self._compiled))

    def called(self, original: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        root = self._roots.get(module)
        if root is None or not module.training or not self.torch.is_grad_enabled():
            return original(*args, **kwargs)
        forward = module.forward
        function = forward.__func__ if getattr(forward, "__self__", None) is module else None
        if function is None:  # what it closes over is unknown
            self.site.no_effect(f"another tool has replaced the forward of {type(module).__name__}")
            return original(*args, **kwargs)

        def instead(*call_args: Any, **call_kwargs: Any) -> Any:
            self._compiling = root if root.first is None else self._compiling
            return root.forward(module, function, call_args, call_kwargs)

        return call_with(instead, module, lambda: original(*args, **kwargs))

    def backward_begins(self, first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if differentiates_again(first, args, kwargs):  # torch has no second derivative of compiled code
            self.site.withdraw("the program differentiates its gradients, which compiled code does not allow")
        if self._compiling is not None and self._compiling.first is not None:
            self._compiling.first.backward_begins()

    def backward_ends(self, *_: Any) -> None:
        root = self._compiling
        if root is not None and root.first is not None:
            self._compiling = None
            root.first.backward_ends()
            root.tell()


def keep_buffers(site: Site) -> None:
    """Disable donated buffers: compiled code may otherwise use up what a backward with retain_graph=True needs."""
    from torch._functorch import config

    if getattr(config, "donated_buffer", False):
        config.donated_buffer = False
        site.ledger.later(partial(setattr, config, "donated_buffer", True))


def differentiates_again(first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether second derivatives are requested. `first` is None for torch.autograd.grad."""
    position = 4 if first is None else 3
    return bool(args[position] if len(args) > position else kwargs.get("create_graph"))


class Root:
    """One root module: which inputs it is compiled for, and what came of it."""

    def __init__(self, site: Site, module: Any, earlier: dict[Any, CompiledForward]) -> None:
        self.site, self.torch = site, site.torch
        self.name = type(module).__name__
        self._earlier = earlier
        self.first: FirstCall | None = None
        self._seen: dict[Any, int] = {}
        self._for: Any = None
        self._compiled: Any = None
        self._function: Any = None
        self._graphs = Graphs()
        self._calls = 0

    def forward(self, module: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        kind = kind_of(self.torch, args, kwargs)
        if self.site.closed or not self._is_for(kind) or self._function not in (None, function):
            return function(module, *args, **kwargs)
        if self._calls < LOOKED_AT:
            return self._looked_at(module, function, args, kwargs)
        with self.torch.compiler.set_stance("eager_on_recompile"):
            return types.MethodType(self._compiled, module)(*args, **kwargs)

    def _is_for(self, kind: Any) -> bool:
        if self._for is not None or kind is None:
            return kind is not None and kind == self._for
        self._seen[kind] = self._seen.get(kind, 0) + 1
        if self._seen[kind] >= SEEN_OFTEN:
            self._for = kind
            self._seen.clear()
            return True
        if len(self._seen) > DIFFERENT:
            self.site.no_effect(f"{self.name} gets inputs of a different shape at each step")
            self._for = MISSING_KIND
        return False

    def _looked_at(self, module: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one of the first calls, in which code is compiled; repeat it eagerly if it fails or draws differently."""
        self._function = function
        earlier = self._earlier.get(function) or CompiledForward(None)
        if earlier.times >= most_recompiles(self.torch):
            self.site.no_effect(f"{self.name} was compiled for {earlier.times} models, and Dynamo accepts no more")
            self._for = MISSING_KIND
            return function(module, *args, **kwargs)
        if (why := why_not_alone()) is not None:  # a compilation that fails is undone
            self.site.refused(why)
            self._for = MISSING_KIND
            return function(module, *args, **kwargs)
        before = Before(self.torch, module)
        is_first, self._calls = self._compiled is None, self._calls + 1
        try:
            outcome = self._compiled_call(module, function, args, kwargs, earlier)
        except NotWorthIt as error:
            why = f"{self.name}: {error}"
        except Exception as error:  # noqa: BLE001 the compiler's, or the user's, which is raised again below
            again = "" if is_first else " again"
            why = f"{self.name} could not be compiled{again} ({type(error).__name__}: {first_line(error)})"
        else:
            if is_first or self._graphs.grown():
                return self._compared(before, outcome, module, function, args, kwargs)
            return outcome
        before.undo()
        self._withdraw(why)
        return function(module, *args, **kwargs)

    def _compiled_call(
        self, module: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], earlier: CompiledForward
    ) -> Any:
        """Call compiled code. A model of a class that was compiled before, such as the next fold's, reuses its code."""
        with backward_at_once():
            if self._compiled is not None:
                self._graphs.start()
                return types.MethodType(self._compiled, module)(*args, **kwargs)
            self.first = FirstCall()
            self._compiled = earlier.code or compiled(self.torch, function, self.site.value or "default")
            self._graphs.start()
            with self.first.timed():
                outcome = types.MethodType(self._compiled, module)(*args, **kwargs)
        self._earlier[function] = self._graphs.judge(self._compiled, earlier)
        return outcome

    def _compared(
        self, before: Before, outcome: Any, module: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Check that compiled code draws the program's random numbers, which memory layout or NumPy may change."""
        if self._calls == LOOKED_AT and self._graphs.grown():
            before.undo()
            self._withdraw(f"{self.name} had to be compiled again at each step")
            return function(module, *args, **kwargs)
        ended = before.moved()
        if ended is None:
            self.tell()
            return outcome
        before.undo()
        with silenced():
            plain = function(module, *args, **kwargs)
        if before.moved() == ended and near(self.torch, outcome, plain):
            self.tell()
        else:
            self._withdraw(f"{self.name} draws different random numbers when it is compiled")
        return plain

    def _withdraw(self, why: str) -> None:
        self.first = None
        self.site.withdraw(why)

    def tell(self) -> None:
        if self.first is not None and not self.site.closed:
            self.site.applied(f"{self.name}, {self._graphs}; {self.first}; other shapes and evaluation stay eager")


MISSING_KIND: Any = object()


def compiled(torch: Any, function: Any, mode: str) -> Any:
    """Compile a function. It draws torch's own random numbers in torch's order, so dropout drops the same elements."""
    options = {**torch._inductor.list_mode_options(mode), "fallback_random": True}
    if "triton.cudagraphs" not in options:
        return torch.compile(function, dynamic=False, options=options)
    inner = torch.compile(function, dynamic=False, options=options)

    def replayed(*args: Any, **kwargs: Any) -> Any:
        """Return copies: a graph's next replay overwrites its results, and the user may keep them."""
        torch.compiler.cudagraph_mark_step_begin()
        tensor = torch.Tensor
        return torch.utils._pytree.tree_map_only(tensor, lambda output: output.clone(), inner(*args, **kwargs))

    return replayed


def kind_of(torch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what compiled code is made for: shapes, types, and the values of plain arguments; None if unknown."""
    leaves, shape = torch.utils._pytree.tree_flatten((args, kwargs))
    kinds: list[Any] = [shape, torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            kinds.append((leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad))
        elif leaf is None or isinstance(leaf, bool | int | float | str):
            kinds.append((type(leaf), leaf))
        else:
            return None
    return Kind(kinds)


class Kind(tuple[Any, ...]):
    """Compared by all of its elements, but hashed without the first, which may not be hashable."""

    def __hash__(self) -> int:
        return hash(tuple(self[1:]))


def first_line(error: Exception) -> str:
    return inspect.cleandoc(str(error)).partition("\n")[0][:160]
