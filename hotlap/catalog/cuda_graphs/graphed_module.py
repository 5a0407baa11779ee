"""A root module's forward and backward, recorded once for one kind of input and replayed for each call of that kind.

Of a training of several models inputs may be differentiated too: a discriminator hands them on to its generator.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from typing import Any

from hotlap.catalog.cuda_graphs.assumptions import Assumptions, Snapshot, Traces
from hotlap.catalog.cuda_graphs.gradients import Gradients
from hotlap.catalog.cuda_graphs.inputs import Inputs
from hotlap.catalog.cuda_graphs.parameter_list import ParameterList
from hotlap.catalog.cuda_graphs.recorder import Recorder
from hotlap.catalog.cuda_graphs.rules import Differs
from hotlap.catalog.cuda_graphs.twins import Twins
from hotlap.catalog.fused_optimizer.proof import is_due
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.forwards import MISSING
from hotlap.runtime.other_threads import why_not_alone

MORE_REHEARSALS = 2  # besides the one that is compared with the replay: lazy set-up must not end up in a recording
NEAR = 1e-3  # of the largest element; some kernels add up in another order each time, a wrong replay is far off
MANY_OUTPUTS = 8


class Turn:
    """From a forward to its backward: the recorded activations are in use."""

    over = False

    def end(self) -> None:
        if self.over:
            raise RuntimeError(
                "a second backward through the same forward: hotlap's CUDA graphs cannot repeat it; "
                "run it --without cuda-graphs"
            )
        self.over = True


class GraphedRoot:
    def __init__(
        self,
        torch: Any,
        recorder: Recorder,
        module: Any,
        forward: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        differentiated: bool = False,
    ) -> None:
        if (why := why_not_alone()) is not None:
            raise EntryDeclined(why)
        self._torch, self._recorder = torch, recorder
        self._tree = torch.utils._pytree
        self._inputs = Inputs(torch, recorder.device_type, args, kwargs, differentiated)
        self._parameters = [one for one in module.parameters() if one.requires_grad]
        self._standing, self._listed = Assumptions(torch, module, forward), ParameterList(torch, module)
        self._turn: Any = lambda: None
        self._given: Any = lambda: None  # the output of this turn, where there is one only
        self._replays, self._is_roomy = 0, True  # there is memory to compute a batch both ways
        self._grad = unwrap(torch.autograd.grad)  # not through our own seam: this is no step of the user's
        kept = Snapshot(torch, recorder, module)
        try:
            self._record(module, forward)
            kept.put_back()
            self._compare()
        finally:
            kept.put_back()
        own = len(self._parameters)
        self._of_inputs = self._recorded[own:]
        reached = [each[:own] for each in self._reached]
        self._gradients = Gradients(torch, self._parameters, self._recorded[:own], reached)
        self._is_single = len(self._outputs) == 1 and self._outputs_shape.is_leaf()
        self._returned = {n: one for n, one in enumerate(self._outputs) if isinstance(one, torch.Tensor)}
        self._positions = [position for position, n in enumerate(self._returned) if n in self._differentiable]
        self._in_functorch = torch._C._are_functorch_transforms_active
        self._function = self._autograd_function()
        self._apply: Any = super(torch.autograd.Function, self._function).apply  # type: ignore[misc]

    # Recording

    def _record(self, module: Any, forward: Any) -> None:

        def run() -> list[Any]:
            args, kwargs = self._inputs.arguments()
            with self.own_casts():
                outputs, self._outputs_shape = self._tree.tree_flatten(forward(*args, **kwargs))
            return outputs  # type: ignore[no-any-return]

        kept = Snapshot(self._torch, self._recorder, module)
        self._rehearse(module, run)
        self._standing.check_rehearsed()
        twins = Twins(module, self._parameters)

        def twin_run() -> list[Any]:
            with twins:
                return run()

        def twin_backward(outputs: list[Any]) -> list[Any]:
            return self._backward(outputs, twins.tensors)

        for _ in range(MORE_REHEARSALS):
            self._recorder.aside(lambda: twin_backward(twin_run()))
        kept.put_back()
        self._forward, self._back = self._recorder.record_both(twin_run, twin_backward)
        if not twins.are_true:
            raise EntryDeclined("forward moves its weights in memory")
        # Without their history, which would keep the activations and nodes that belong to the recording's stream.
        self._outputs = [one.detach() if isinstance(one, self._torch.Tensor) else one for one in self._forward.outcome]
        self._recorded = self._back.outcome
        self._forward, self._back = self._forward._replace(outcome=None), self._back._replace(outcome=None)

    def _rehearse(self, module: Any, run: Any) -> None:
        """Once with everything watched that a replay would miss; the results are kept to compare the replay with."""
        traces = Traces(self._torch, module, own_stream=self._recorder.device_type != "cpu")
        versions = self._inputs.versions()
        try:
            self._recorder.here(lambda: self._try(run))
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            raise EntryDeclined("forward or backward waits for a value of the device") from error
        finally:
            why = traces.why_not()
            traces.put_back()
        if versions != self._inputs.versions():
            why = "forward writes into its inputs"
        if why is not None:
            raise EntryDeclined(why)

    def _try(self, run: Any) -> None:
        torch = self._torch
        outputs = run()
        self._check(outputs)
        self._differentiable = [number for number, one in enumerate(outputs) if self._is_trained(one)]
        self._upstream = [torch.ones_like(outputs[number]) for number in self._differentiable]
        trained = [outputs[number] for number in self._differentiable]
        single = len(trained) == 1
        own = self._parameters
        reached = [] if single else [self._backward_of([one], own, [torch.ones_like(one)], True) for one in trained]
        gradients = self._backward_of(trained, own, self._upstream, False)
        self._reached = [[one is not None for one in each] for each in (reached or [gradients])]
        self._reference = [one.detach().clone() for one in outputs if isinstance(one, torch.Tensor)] + gradients

    def _check(self, outputs: list[Any]) -> None:
        torch = self._torch
        for one in outputs:
            if isinstance(one, torch.Tensor):
                if type(one) is not torch.Tensor or one.device.type != self._recorder.device_type:
                    raise EntryDeclined("forward returns a tensor that is not on the GPU, or of a kind of its own")
            elif not (one is None or isinstance(one, bool | int | float | str)):
                raise EntryDeclined(f"forward returns {type(one).__name__}, which may hold anything")
        trained = sum(self._is_trained(one) for one in outputs)
        if not 0 < trained <= MANY_OUTPUTS:
            raise EntryDeclined(f"forward returns {trained} tensors to differentiate")

    def _is_trained(self, one: Any) -> bool:
        return isinstance(one, self._torch.Tensor) and one.requires_grad

    def _backward(self, outputs: list[Any], parameters: list[Any]) -> list[Any]:
        trained = [outputs[number] for number in self._differentiable]
        return self._backward_of(trained, parameters, self._upstream, False)

    def _backward_of(self, outputs: list[Any], parameters: list[Any], upstream: list[Any], retain: bool) -> list[Any]:
        leaves = [*parameters, *self._inputs.sources]
        found = self._grad(outputs, leaves, upstream, retain_graph=retain, allow_unused=True)
        if any(one is not None and one.layout is not self._torch.strided for one in found):
            raise EntryDeclined("gradients are sparse")
        return self._apart(found, upstream)

    def _apart(self, found: tuple[Any, ...], upstream: list[Any]) -> list[Any]:
        """Each in memory of its own, laid out as its parameter: what autograd would make of them when it keeps them."""
        taken = [_extent(one) for one in upstream]
        gradients: list[Any] = []
        for one, parameter in zip(found, [*self._parameters, *self._inputs.sources], strict=True):
            held = one
            if one is not None:
                start, end = _extent(one)
                if one.stride() != parameter.stride() or any(start < last and first < end for first, last in taken):
                    held = self._torch.empty_like(parameter, requires_grad=False).copy_(one)
                taken.append(_extent(held))
            gradients.append(held)
        return gradients

    @contextmanager
    def own_casts(self) -> Iterator[None]:
        """Autocast as it is, but weights are cast in the recording: a cast kept from before would never change."""
        self._torch.clear_autocast_cache()
        with self.casting(*self.casts()):
            yield
        self._torch.clear_autocast_cache()

    def casts(self) -> tuple[bool, Any]:
        """Autocast as it is now."""
        torch, kind = self._torch, self._recorder.device_type
        return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def casting(self, enabled: bool, dtype: Any) -> Any:
        """Autocast as it was, without its memory of casts."""
        return self._torch.autocast(self._recorder.device_type, dtype=dtype, enabled=enabled, cache_enabled=False)

    def _compare(self) -> None:
        """The replay against the rehearsal, on the same inputs and random numbers. Host sync, once."""
        self._forward.replay()
        self._back.replay()
        outputs = [one for one in self._outputs if isinstance(one, self._torch.Tensor)]
        scale = largest(self._reference[len(outputs) :])
        for number, (one, other) in enumerate(zip([*outputs, *self._recorded], self._reference, strict=True)):
            if not near(self._torch, one, other, scale if number >= len(outputs) else 0.0):
                self._forward.forget()
                self._back.forget()
                what = "a gradient" if number >= len(outputs) else "an output"
                raise EntryDeclined(f"a replay gives other results than the model itself: {what} {_apart(one, other)}")
        self._reference = []

    def _prove(self, module: Any, forward: Any) -> None:
        """The model itself on this batch, from the same state, held against a replay: now and then while it trains.
        What the program keeps of earlier gradients lies where the replay writes, and is put back. Host sync.
        """
        kept = Snapshot(self._torch, self._recorder, module)
        traces = Traces(self._torch, module, own_stream=self._recorder.device_type != "cpu")
        args, kwargs = self._inputs.arguments()
        before: list[Any] = []
        try:
            with self.own_casts():
                outputs = self._tree.tree_flatten(forward(*args, **kwargs))[0]
            gradients = self._backward(outputs, self._parameters)
            tensors = [one for one in outputs if isinstance(one, self._torch.Tensor)]
            self._reference = [*(one.detach().clone() for one in tensors), *gradients]
            if (why := traces.why_not()) is not None:
                raise EntryDeclined(why)
            kept.put_back()
            before = [None if one is None else one.clone() for one in self._recorded]
            self._compare()
        except EntryDeclined as refusal:
            raise Differs(str(refusal)) from None
        except self._torch.OutOfMemoryError:
            self._is_roomy = False
        finally:
            kept.put_back()
            traces.put_back()
            for one, values in zip(self._recorded, before, strict=False):
                if one is not None:
                    one.copy_(values)

    # Replaying

    def __call__(self, module: Any, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What forward would return, or MISSING where this is not a call that was recorded."""
        if self._under_way:
            return MISSING  # the activations of another call wait for their backward
        leaves = self._inputs.fitting(args, kwargs)
        if leaves is None or not self._standing.holds(module, forward):
            return MISSING
        self._inputs.take(leaves)
        if self._in_functorch():
            return MISSING
        self._replays += 1
        if self._is_roomy and is_due(self._replays):
            self._prove(module, forward)
        sources = self._inputs.sources_of(leaves)
        replayed = self._apply(*self._parameters, *sources)  # what Function.apply does outside of these transforms
        if self._is_single:
            self._given = weakref.ref(replayed[0])
            return replayed[0]
        remaining = iter(replayed)
        outputs = [next(remaining) if isinstance(one, self._torch.Tensor) else one for one in self._outputs]
        return self._tree.tree_unflatten(outputs, self._outputs_shape)

    def _autograd_function(self) -> Any:
        graphed, torch = self, self._torch

        class Replayed(torch.autograd.Function):  # type: ignore[misc,name-defined]
            @staticmethod
            def forward(ctx: Any, *parameters: Any) -> Any:
                ctx.materialize_grads = False  # what set_materialize_grads does, in a tenth of the time
                ctx.turn = turn = Turn()
                graphed._turn = weakref.ref(turn)
                return graphed._replay_forward(ctx)

            @staticmethod
            def backward(ctx: Any, *upstream: Any) -> Any:
                ctx.turn.end()
                if torch.is_grad_enabled():  # create_graph=True
                    return Replayed.once(ctx, *upstream)
                return graphed._replay_backward(upstream)

            @staticmethod
            @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
            def once(ctx: Any, *upstream: Any) -> Any:
                return graphed._replay_backward(upstream)

        return Replayed

    def _replay_forward(self, ctx: Any) -> tuple[Any, ...]:
        """Copies: the next replay overwrites what is recorded, and the user may keep what forward returned."""
        self._forward.replay()
        copies = [one.clone() for one in self._returned.values()]
        if len(copies) > len(self._positions):
            ctx.mark_non_differentiable(*(one for n, one in enumerate(copies) if n not in self._positions))
        return tuple(copies)

    def _replay_backward(self, upstream: tuple[Any, ...]) -> tuple[Any, ...]:
        given = [upstream[position] for position in self._positions]
        for held, one in zip(self._upstream, given, strict=True):
            held.zero_() if one is None else held.copy_(one)
        found = self._gradients.after(self._back.replay, [one is not None for one in given])
        return (*found, *(None if one is None else one.clone() for one in self._of_inputs))

    @property
    def is_over(self) -> bool:
        return self._standing.is_over

    def parameters(self, given: Any, module: Any) -> list[Any] | None:
        """In a list, where these are what `module.parameters()` gives of the module that was recorded."""
        return self._listed.of(given, module) if self._standing.is_held() else None

    # What a recorded loss needs

    def is_output(self, tensor: Any) -> bool:
        """Whether this is what forward has just returned, as it was returned."""
        return tensor is self._given() and self._under_way and not tensor._version and not tensor._backward_hooks

    @property
    def static_output(self) -> Any:
        return self._outputs[0]

    @property
    def upstream(self) -> Any:
        return self._upstream[0]

    def backward_alone(self) -> bool:
        """The backward of this turn with the derivative that lies there already, without autograd's engine."""
        given = self._given()
        if not self._under_way or self._gradients.is_hooked() or given is None:
            return False
        if given._backward_hooks or given.retains_grad:
            return False
        self._turn().over = True
        self._gradients.add(self._back.replay)
        return True

    def plain_backward(self, begins: bool) -> None:
        """A backward of all leaves begins or has ended: gradients may then go to the parameters directly."""
        self._gradients.direct = begins

    @property
    def _under_way(self) -> bool:
        turn = self._turn()
        return turn is not None and not turn.over

    def forget(self) -> None:
        """Give the memory back, unless a backward is still to come: it then goes when that graph does."""
        if not self._under_way:
            self._forward.forget()
            self._back.forget()
            self._outputs, self._returned, self._upstream, self._of_inputs = [], {}, [], []
            self._inputs.forget()
            self._gradients.forget()
            self._listed.forget()
            self._function = self._apply = None


def _extent(tensor: Any) -> tuple[int, int]:
    """Of its memory, for tensors without gaps."""
    start = tensor.data_ptr()
    return start, start + tensor.numel() * tensor.element_size()


def largest(gradients: Iterable[Any]) -> float:
    """The largest finite element of all. Host sync."""
    found = [one.detach().nan_to_num(0.0, 0.0, 0.0) for one in gradients if one is not None and one.numel()]
    return max((float(one.abs().max()) for one in found), default=0.0)


def _apart(one: Any, other: Any) -> str:
    if one is None or other is None:
        return "is missing"
    off = float((one.detach().double() - other.detach().double()).abs().max())
    return f"differs by {off:.2g} where its largest is {largest([other]):.2g}"


def near(torch: Any, one: Any, other: Any, scale: float = 0.0) -> bool:
    """`scale` is the largest gradient of the model: one that is nothing but rounding beside it (the bias of an
    attention's keys has none by mathematics) is another each time its sums are in another order.
    """
    if one is None or other is None:
        return one is other
    one, other = one.detach(), other.detach()
    if torch.equal(one, other):
        return True
    if not one.is_floating_point():
        return False
    rounding = torch.finfo(one.dtype).eps * scale
    one, other = one.double().nan_to_num(), other.double().nan_to_num()
    return bool((one - other).abs().max() <= max(rounding, NEAR * float(other.abs().max())))
