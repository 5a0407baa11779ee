"""The loss of the root's output, captured with its derivative, and the backward that starts from it.

For a small model the loss is half of the kernels left to launch. It is captured where torch's loss function is called
with the very tensor that forward returned. A plain `loss.backward()` then needs no autograd engine: the derivative lies
where the root's captured backward reads it. Anything else done with the loss goes through autograd, with the loss
computed once more, eagerly; from then on losses are no longer replayed.
"""

from __future__ import annotations

import weakref
from functools import partial
from inspect import unwrap
from typing import Any

from hotlap.catalog.cuda_graphs.graphed_module import GraphedRoot
from hotlap.catalog.cuda_graphs.habits import is_plain_backward
from hotlap.catalog.cuda_graphs.inputs import Inputs, kinds_of
from hotlap.catalog.cuda_graphs.parts import Whole
from hotlap.catalog.cuda_graphs.recorder import Recording
from hotlap.catalog.cuda_graphs.rounding import near
from hotlap.kernels.gradients import gradients_of
from hotlap.patch.signals import comes_from_outside
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.forwards import MISSING

NAMES = (
    "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss", "l1_loss", "mse_loss", "nll_loss",
    "smooth_l1_loss",
)  # fmt: skip


class Losses:
    def __init__(self, graphs: Whole) -> None:
        self.graphs, self._torch = graphs, graphs.torch
        self._recorded: RecordedLoss | None = None
        self._last: Any = None  # the kind of the previous call
        self._loss: Any = lambda: None  # of this step
        self.why_not: str | None = None

    @property
    def recorded(self) -> bool:
        return self._recorded is not None

    def begin(self) -> None:
        site = self.graphs.site
        for name in NAMES:
            site.replace(self._torch.nn.functional, name, partial(self._called, name))
        site.stand_in(site.seams.backward, self._differentiated)

    def drop(self) -> None:
        recorded, self._recorded, self._last = self._recorded, None, None
        if recorded is not None:
            recorded.forget()

    def __str__(self) -> str:
        return f" and of {self._recorded.name}" if self._recorded is not None else ""

    def _called(self, name: str, original: Any, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        root = self.graphs.graphed
        if self.why_not is not None or root is None or not args or not root.is_output(args[0]):
            return original(*args, **kwargs)
        found = self._replayed(root, name, original.original, args, kwargs)
        return original(*args, **kwargs) if found is MISSING else found

    def _replayed(self, root: GraphedRoot, name: str, function: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        try:
            if self._recorded is None and not self._record(root, name, function, args, kwargs):
                return MISSING
            assert self._recorded is not None
            loss = self._recorded(name, args, kwargs)
        except EntryDeclined as refusal:
            self.why_not = str(refusal)
            self.drop()
            return MISSING
        except Exception as error:
            if self.graphs.site.seams.guard.strict or comes_from_outside(error):
                raise
            self.why_not = f"capturing it failed: {type(error).__name__}: {error}"
            self.drop()
            return MISSING
        if loss is not MISSING:
            self._loss = weakref.ref(loss)
        return loss

    def _record(self, root: GraphedRoot, name: str, function: Any, args: tuple[Any, ...], kwargs: Any) -> bool:
        leaves, shape = self._torch.utils._pytree.tree_flatten((args[1:], kwargs))
        kinds = kinds_of(self._torch, leaves, self.graphs.recorder.device_type)
        before, self._last = self._last, (name, shape, kinds)
        if kinds is None or before != self._last:
            return False
        self._recorded = RecordedLoss(self, root, name, unwrap(function), args, kwargs)
        self.graphs.tell()
        return True

    def unusual(self) -> None:
        """Stop replaying: the loss was differentiated through autograd, which costs more with a replay than without."""
        self.why_not = "it is not differentiated directly (a scaled loss, a sum of several)"
        self.drop()
        self.graphs.tell()

    def _differentiated(self, original: Any, first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        loss, root = self._loss(), self.graphs.graphed
        if loss is None or first is not loss or root is None or not is_plain_backward(first, args, kwargs):
            return original(*args, **kwargs)
        if args[1:2] not in ((), (None,)) or kwargs.get("grad_tensors") is not None:
            return original(*args, **kwargs)
        if loss._version or loss._backward_hooks or not root.backward_alone():
            return original(*args, **kwargs)
        self._loss = lambda: None
        return None


class RecordedLoss:
    """One captured loss function of the root's output, for one kind of target."""

    def __init__(
        self, losses: Losses, root: GraphedRoot, name: str, function: Any, args: tuple[Any, ...], kwargs: Any
    ) -> None:
        graphs = losses.graphs
        self._torch, self._recorder, self._root = graphs.torch, graphs.recorder, root
        self.name, self._function = name, function
        self._inputs = Inputs(self._torch, self._recorder.device_type, args[1:], kwargs)
        self._casts = root.casts()  # a matching call has the same
        self._recording = self._record()
        self._lost = self._autograd_function(losses)
        # What Function.apply does outside of functorch's transforms, where the root is not replayed either.
        self._apply: Any = super(self._torch.autograd.Function, self._lost).apply  # type: ignore[misc]

    def _record(self) -> Recording:
        """Capture the loss and compare a replay with an eager run. Host sync, once."""
        upstream = self._root.upstream
        try:
            loss = self._recorder.here(self._work)
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            raise EntryDeclined("it waits for a value from the device") from error
        reference = [loss.clone(), upstream.clone()]
        self._recorder.aside(self._work)
        recording = self._recorder.record(self._work)
        upstream.zero_()
        recording.replay()
        if not all(near(self._torch, *pair) for pair in zip([recording.outcome, upstream], reference, strict=True)):
            raise EntryDeclined("a replay gives a different loss")
        return recording

    def _work(self) -> Any:
        """Return the loss, and write its derivative where the root's backward reads it."""
        rest, named = self._inputs.arguments()
        with self._torch.enable_grad():
            output = self._root.static_output.detach().requires_grad_()
            with self._root.own_casts():
                loss = self._function(output, *rest, **named)
            if loss.dim() or not loss.requires_grad:
                raise EntryDeclined("it is not a single number that depends on the output")
            (gradient,) = gradients_of([loss], [output], [self._torch.ones_like(loss)])
        self._root.upstream.copy_(gradient)
        return loss.detach()

    def __call__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves = self._inputs.fitting(args[1:], kwargs) if name == self.name else None
        if leaves is None:
            return MISSING
        self._inputs.take(leaves)
        self._recording.replay()
        return self._apply(args[0], partial(self._once_more, args, kwargs))

    def _once_more(self, args: tuple[Any, ...], kwargs: dict[str, Any], upstream: Any) -> Any:
        """Return the derivative as autograd would have computed it."""
        with self._torch.enable_grad(), self._root.casting(*self._casts):
            output = args[0].detach().requires_grad_()
            loss = self._function(output, *args[1:], **kwargs)
        return gradients_of([loss], [output], [upstream])[0]

    def _autograd_function(self, losses: Losses) -> Any:
        torch, recorded = self._torch, self

        class Lost(torch.autograd.Function):  # type: ignore[misc,name-defined]
            @staticmethod
            def forward(ctx: Any, output: Any, once_more: Any) -> Any:
                ctx.once_more = once_more
                return recorded._recording.outcome.clone()

            @staticmethod
            @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
            def backward(ctx: Any, upstream: Any) -> Any:
                losses.unusual()
                return ctx.once_more(upstream), None

        return Lost

    def forget(self) -> None:
        self._recording.forget()
        self._inputs.forget()
