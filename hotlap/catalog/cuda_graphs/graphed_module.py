"""A root module's forward and backward, captured once for one kind of input and replayed for each call of that kind.

With several models, inputs may be differentiated too: a discriminator passes derivatives on to its generator.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hotlap.catalog.cuda_graphs.assumptions import Assumptions, Snapshot, Traces
from hotlap.catalog.cuda_graphs.gradients import Gradients, apart
from hotlap.catalog.cuda_graphs.inputs import Inputs
from hotlap.catalog.cuda_graphs.masks import CausalMasks
from hotlap.catalog.cuda_graphs.parameter_list import ParameterList
from hotlap.catalog.cuda_graphs.recorder import Recorder
from hotlap.catalog.cuda_graphs.rounding import difference, is_as_uncertain, largest, near
from hotlap.catalog.cuda_graphs.rules import Differs
from hotlap.catalog.cuda_graphs.twins import Twins
from hotlap.catalog.fused_optimizer.proof import is_due
from hotlap.kernels.gradients import gradients_of
from hotlap.runtime.decline import EntryDeclined
from hotlap.runtime.forwards import MISSING
from hotlap.runtime.other_threads import why_not_alone
from hotlap.runtime.recomputed_weights import weight_norms
from hotlap.runtime.silence import silenced

MORE_REHEARSALS = 2  # besides the one compared with the replay: lazy set-up must not be captured
MANY_OUTPUTS = 8
TIMES_AGAIN = 2  # the model computes the same, to see how far it differs from itself


class Turn:
    """Lasts from a forward to its backward, while the captured activations are in use."""

    over = False

    def end(self) -> None:
        if self.over:
            raise RuntimeError(
                "hotlap's CUDA graphs cannot run a second backward through the same forward; "
                "start the program with --without cuda-graphs"
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
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._standing, self._listed = Assumptions(torch, module, forward), ParameterList(torch, module)
        self._weight_norms = [(hook, child) for child in list(module.modules())[1:] for hook in weight_norms(child)]
        self._turn: Any = lambda: None
        self._given: Any = lambda: None  # the output of this turn, if there is only one
        self._replays, self._is_roomy = 0, True  # whether there is memory to compute a batch both ways
        self._masks = CausalMasks(torch, self._inputs.tensors, recorder.waiting)
        snapshot = Snapshot(torch, recorder, module)
        try:
            self._record(module, forward)
            snapshot.put_back()
            self._compare(lambda: self._computed(module, forward, snapshot))
        finally:
            snapshot.put_back()
        own = len(self._parameters)
        self._of_inputs = self._recorded[own:]
        reached = [flags[:own] for flags in self._reached]
        self._gradients = Gradients(torch, self._parameters, self._recorded[:own], reached)
        self._is_single = len(self._outputs) == 1 and self._outputs_shape.is_leaf()
        self._returned = {n: output for n, output in enumerate(self._outputs) if isinstance(output, torch.Tensor)}
        self._positions = [position for position, n in enumerate(self._returned) if n in self._differentiable]
        self._in_functorch = torch._C._are_functorch_transforms_active
        self._function = self._autograd_function()
        self._apply: Any = super(torch.autograd.Function, self._function).apply  # type: ignore[misc]

    # Capturing

    def _record(self, module: Any, forward: Any) -> None:

        def run() -> list[Any]:
            args, kwargs = self._inputs.arguments()
            with self._masks.answered(), self.own_casts():
                outputs, self._outputs_shape = self._tree.tree_flatten(forward(*args, **kwargs))
            return outputs  # type: ignore[no-any-return]

        snapshot = Snapshot(self._torch, self._recorder, module)
        self._rehearse(module, run)
        self._standing.check_rehearsed()
        self._masks.learned()
        twins = Twins(module, self._parameters)

        def twin_run() -> list[Any]:
            with twins:
                return run()

        def twin_backward(outputs: list[Any]) -> list[Any]:
            return self._backward(outputs, twins.tensors)

        for _ in range(MORE_REHEARSALS):
            self._recorder.aside(lambda: twin_backward(twin_run()))
        snapshot.put_back()
        self._forward, self._back = self._recorder.record_both(twin_run, twin_backward)
        if not twins.are_true:
            raise EntryDeclined("forward moves its weights in memory")
        # Detached: their history would keep the activations and nodes that belong to the capture stream.
        self._outputs = [output.detach() if self._is_tensor(output) else output for output in self._forward.outcome]
        self._recorded = self._back.outcome
        self._forward, self._back = self._forward._replace(outcome=None), self._back._replace(outcome=None)

    def _rehearse(self, module: Any, run: Any) -> None:
        """Run once, watching for everything a replay would miss; the replay is later compared with the results."""
        traces = Traces(self._torch, module, own_stream=self._recorder.device_type != "cpu")
        versions, stores = self._inputs.versions(), self._standing.stores()
        try:
            with silenced() as silence, stores.watched():
                self._recorder.here(lambda: self._try(run))
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            raise EntryDeclined("forward or backward waits for a value from the device") from error
        finally:
            why = traces.why_not()
            traces.put_back()
        if versions != self._inputs.versions():
            why = "forward writes into its inputs"
        if stores.found is not None:
            why = f"{stores.found}, which a replay would not"
        if silence.broken:
            why = "forward prints or writes a log, which a replay would not"
        if why is not None:
            raise EntryDeclined(why)

    def _try(self, run: Any) -> None:
        torch = self._torch
        outputs = run()
        self._check(outputs)
        self._differentiable = [number for number, output in enumerate(outputs) if self._is_trained(output)]
        self._upstream = [torch.ones_like(outputs[number]) for number in self._differentiable]
        trained = [outputs[number] for number in self._differentiable]
        single = len(trained) == 1
        own = self._parameters
        reached = (
            [] if single else [self._backward_of([output], own, [torch.ones_like(output)], True) for output in trained]
        )
        gradients = self._backward_of(trained, own, self._upstream, False)
        self._reached = [[gradient is not None for gradient in found] for found in (reached or [gradients])]
        self._reference = [*(output.detach().clone() for output in filter(self._is_tensor, outputs)), *gradients]

    def _check(self, outputs: list[Any]) -> None:
        torch = self._torch
        for output in outputs:
            if isinstance(output, torch.Tensor):
                if type(output) is not torch.Tensor or output.device.type != self._recorder.device_type:
                    raise EntryDeclined("forward returns a tensor that is not on the GPU, or a tensor subclass")
            elif not (output is None or isinstance(output, bool | int | float | str)):
                raise EntryDeclined(f"forward returns {type(output).__name__}, which may hold anything")
        trained = sum(self._is_trained(output) for output in outputs)
        if not 0 < trained <= MANY_OUTPUTS:
            raise EntryDeclined(f"forward returns {trained} tensors to differentiate")

    def _is_trained(self, output: Any) -> bool:
        return isinstance(output, self._torch.Tensor) and output.requires_grad

    def _backward(self, outputs: list[Any], parameters: list[Any]) -> list[Any]:
        trained = [outputs[number] for number in self._differentiable]
        return self._backward_of(trained, parameters, self._upstream, False)

    def _backward_of(self, outputs: list[Any], parameters: list[Any], upstream: list[Any], retain: bool) -> list[Any]:
        leaves = [*parameters, *self._inputs.sources]
        found = gradients_of(outputs, leaves, upstream, retain_graph=retain, allow_unused=True)
        if any(held is not None and held.layout is not self._torch.strided for held in found):
            raise EntryDeclined("gradients are sparse")
        return apart(self._torch, found, leaves, upstream)

    @contextmanager
    def own_casts(self) -> Iterator[None]:
        """Keep autocast as it is, but cast weights within the capture: a cast cached before would never change."""
        self._torch.clear_autocast_cache()
        with self.casting(*self.casts()):
            yield
        self._torch.clear_autocast_cache()

    def casts(self) -> tuple[bool, Any]:
        """Return whether autocast is enabled, and its dtype."""
        torch, kind = self._torch, self._recorder.device_type
        return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def casting(self, enabled: bool, dtype: Any) -> Any:
        """Return an autocast context in the given state, without its cache of casts."""
        return self._torch.autocast(self._recorder.device_type, dtype=dtype, enabled=enabled, cache_enabled=False)

    def _computed(self, module: Any, forward: Any, snapshot: Snapshot) -> list[Any]:
        """Return the outputs and gradients of the model itself, for the inputs and the state of the snapshot."""
        snapshot.put_back()
        args, kwargs = self._inputs.arguments()
        with self.own_casts():
            outputs = self._tree.tree_flatten(forward(*args, **kwargs))[0]
        gradients = self._backward(outputs, self._parameters)
        return [*(output.detach().clone() for output in filter(self._is_tensor, outputs)), *gradients]

    def _is_tensor(self, output: Any) -> bool:
        return isinstance(output, self._torch.Tensor)

    def _compare(self, computed: Callable[[], list[Any]]) -> None:
        """Compare a replay with the rehearsal, on the same inputs and random numbers. Host sync, once.

        What differs by more than rounding may still differ by no more than the model from itself: `computed()` does
        the same again, and kernels that add in no fixed order then give other results.
        """
        self._forward.replay()
        self._back.replay()
        results = [*filter(self._is_tensor, self._outputs), *self._recorded]
        first = len(results) - len(self._recorded)  # the first gradient
        scale, again = largest(self._reference[first:]), None
        for number, (result, reference) in enumerate(zip(results, self._reference, strict=True)):
            if near(self._torch, result, reference, scale if number >= first else 0.0):
                continue
            again = self._again(computed) if again is None else again
            if not is_as_uncertain(result, reference, [values[number] for values in again]):
                self._forward.forget()
                self._back.forget()
                what = "a gradient" if number >= first else "an output"
                raise EntryDeclined(
                    f"a replay gives different results from the model itself: {what} {difference(result, reference)}"
                )
        self._reference = []

    def _again(self, computed: Callable[[], list[Any]]) -> list[list[Any]]:
        """Return the results of the model itself, several times; none if there is no memory for that."""
        try:
            return [computed() for _ in range(TIMES_AGAIN)]
        except self._torch.OutOfMemoryError:
            return []

    def _prove(self, module: Any, forward: Any) -> None:
        """Compare a replay with the model itself on this batch, from the same state: now and then while it trains.
        Earlier gradients that the program retains lie where the replay writes, and are restored. Host sync.
        """
        snapshot = Snapshot(self._torch, self._recorder, module)
        traces = Traces(self._torch, module, own_stream=self._recorder.device_type != "cpu")
        before: list[Any] = []
        try:
            self._reference = self._computed(module, forward, snapshot)
            if (why := traces.why_not()) is not None:
                raise EntryDeclined(why)
            snapshot.put_back()
            before = [None if gradient is None else gradient.clone() for gradient in self._recorded]
            self._compare(lambda: self._computed(module, forward, snapshot))
        except EntryDeclined as refusal:
            raise Differs(str(refusal)) from None
        except self._torch.OutOfMemoryError:
            self._is_roomy = False
        finally:
            snapshot.put_back()
            traces.put_back()
            for gradient, values in zip(self._recorded, before, strict=False):
                if gradient is not None:
                    gradient.copy_(values)

    # Replaying

    def __call__(self, module: Any, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what forward would, or MISSING if this call does not match the capture."""
        if self._under_way:
            return MISSING  # the backward of another call still needs the activations
        leaves = self._inputs.fitting(args, kwargs)
        if leaves is None or not self._standing.holds(module, forward) or not self._masks.hold():
            return MISSING
        self._inputs.take(leaves)
        if self._in_functorch():
            return MISSING
        self._replays += 1
        if self._is_roomy and is_due(self._replays):
            self._prove(module, forward)
        sources = self._inputs.sources_of(leaves)
        replayed = self._apply(*self._parameters, *sources)  # what Function.apply does outside functorch transforms
        for hook, child in self._weight_norms:
            hook(child, args)  # the program may read the weight, or differentiate by it
        if self._is_single:
            self._given = weakref.ref(replayed[0])
            return replayed[0]
        remaining = iter(replayed)
        outputs = [next(remaining) if self._is_tensor(output) else output for output in self._outputs]
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
        """Return copies: the next replay overwrites the captured outputs, and the user may keep what is returned."""
        self._forward.replay()
        copies = [output.clone() for output in self._returned.values()]
        if len(copies) > len(self._positions):
            ctx.mark_non_differentiable(*(copy for n, copy in enumerate(copies) if n not in self._positions))
        return tuple(copies)

    def _replay_backward(self, upstream: tuple[Any, ...]) -> tuple[Any, ...]:
        given = [upstream[position] for position in self._positions]
        for held, derivative in zip(self._upstream, given, strict=True):
            held.zero_() if derivative is None else held.copy_(derivative)
        found = self._gradients.after(self._back.replay, [derivative is not None for derivative in given])
        return (*found, *(None if gradient is None else gradient.clone() for gradient in self._of_inputs))

    @property
    def is_over(self) -> bool:
        return self._standing.is_over

    def parameters(self, given: Any, module: Any) -> list[Any] | None:
        """Return the parameters in a list if `given` is an unread `parameters()` generator of the captured module."""
        return self._listed.of(given, module) if self._standing.is_held() else None

    # What a captured loss needs

    def is_output(self, tensor: Any) -> bool:
        """Whether this is the tensor that forward has just returned, unmodified."""
        return tensor is self._given() and self._under_way and not tensor._version and not tensor._backward_hooks

    @property
    def static_output(self) -> Any:
        return self._outputs[0]

    @property
    def upstream(self) -> Any:
        return self._upstream[0]

    def backward_alone(self) -> bool:
        """Run this turn's backward from the derivative already in place, without autograd's engine, if possible."""
        given = self._given()
        if not self._under_way or self._gradients.is_hooked() or given is None:
            return False
        if given._backward_hooks or given.retains_grad:
            return False
        self._turn().over = True
        self._gradients.add(self._back.replay)
        return True

    def plain_backward(self, begins: bool) -> None:
        """Note that a backward over all leaves begins or has ended; gradients go straight to parameters in between."""
        self._gradients.direct = begins

    @property
    def _under_way(self) -> bool:
        turn = self._turn()
        return turn is not None and not turn.over

    def forget(self) -> None:
        """Free the memory, unless a backward is still to come: then it is freed along with that graph."""
        if not self._under_way:
            self._forward.forget()
            self._back.forget()
            self._outputs, self._returned, self._upstream, self._of_inputs = [], {}, [], []
            self._inputs.forget()
            self._masks.forget()
            self._gradients.forget()
            self._listed.forget()
            self._function = self._apply = None
