"""A function's forward and backward, captured for one kind of arguments."""

from __future__ import annotations

import weakref
from typing import Any

from hotlap.catalog.cuda_graphs.graphed_module import GraphedRoot, Turn
from hotlap.catalog.cuda_graphs.recorder import Recorder
from hotlap.catalog.cuda_graphs.rounding import near
from hotlap.kernels.gradients import gradients_of
from hotlap.runtime.decline import EntryDeclined

PLAIN = (bool, int, float, str, type(None))


class SharedMemory:
    """The memory that all captures of one function share, so that only one of them is in use at a time."""

    def __init__(self, torch: Any, recorder: Recorder) -> None:
        self.torch, self.recorder = torch, recorder
        self.turn: Any = lambda: None
        self.pool: Any = None
        self._inputs: dict[Any, Any] = {}
        self._gradients: dict[Any, Any] = {}

    @property
    def under_way(self) -> bool:
        """Whether a forward still awaits its backward, so that the captured activations are in use."""
        turn = self.turn()
        return turn is not None and not turn.over

    def input(self, position: int, like: Any) -> Any:
        return self._tensor(self._inputs, position, like)

    def gradient(self, position: int, like: Any) -> Any:
        return self._tensor(self._gradients, position, like)

    @staticmethod
    def _tensor(held: dict[Any, Any], position: int, like: Any) -> Any:
        key = (position, like.shape, like.stride(), like.dtype, like.device)
        if key not in held:
            held[key] = like.detach().clone()
        return held[key]

    def forget(self) -> None:
        if not self.under_way:
            self._inputs, self._gradients, self.pool = {}, {}, None


class RecordedFunction:
    def __init__(
        self, shared: SharedMemory, root: GraphedRoot, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._shared, self._torch, self._recorder = shared, shared.torch, shared.recorder
        self._tree = shared.torch.utils._pytree
        self._root, self._work = root, function
        leaves, self._shape = self._tree.tree_flatten((args, kwargs))
        tensors = [(n, leaf) for n, leaf in enumerate(leaves) if isinstance(leaf, self._torch.Tensor)]
        self._held = {n: shared.input(n, tensor) for n, tensor in tensors}
        self._trained = [n for n, tensor in tensors if tensor.requires_grad]
        self._upstream: dict[int, Any] = {}
        self._leaves = [None if n in self._held else leaf for n, leaf in enumerate(leaves)]
        random = self._recorder.random_state()
        try:
            self._take(dict(tensors))
            self._record(random)
        finally:
            self._recorder.set_random_state(random)
        self._function = self._autograd_function()
        self._apply: Any = super(self._torch.autograd.Function, self._function).apply  # type: ignore[misc]

    def is_for(self, shape: Any) -> bool:
        return bool(shape == self._shape)

    # Capturing
    def _record(self, random: Any) -> None:
        """Capture the function and compare a replay with an eager run. Host sync, once."""
        torch, recorder = self._torch, self._recorder
        versions = [tensor._version for tensor in self._held.values()]
        host = torch.get_rng_state()
        try:
            reference = recorder.here(self._once)
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            raise EntryDeclined("it waits for a value from the device") from error
        if versions != [tensor._version for tensor in self._held.values()]:
            raise EntryDeclined("it writes into its arguments")
        if recorder.device_type != "cpu" and not torch.equal(host, torch.get_rng_state()):
            raise EntryDeclined("it draws random numbers on the host")
        recorder.aside(self._once)
        recorder.set_random_state(random)
        if self._shared.pool is None:
            self._shared.pool = recorder.new_pool()
        self._forward, self._back = recorder.record_both(self._run, self._backward, self._shared.pool)
        self._outputs = [
            output.detach() if isinstance(output, torch.Tensor) else output for output in self._forward.outcome
        ]
        self._gradients = self._back.outcome
        self._forward, self._back = self._forward._replace(outcome=None), self._back._replace(outcome=None)
        recorder.set_random_state(random)
        self._forward.replay()
        self._back.replay()
        found = [*self._outputs, *self._gradients]
        if not all(self._alike(*pair) for pair in zip(found, reference, strict=True)):
            self._forward.forget()
            self._back.forget()
            raise EntryDeclined("a replay gives different results")

    def _alike(self, result: Any, reference: Any) -> bool:
        if isinstance(result, self._torch.Tensor) or isinstance(reference, self._torch.Tensor):
            return near(self._torch, result, reference)
        return bool(result == reference)

    def _once(self) -> list[Any]:
        outputs = self._run()
        if not self._upstream:
            self._upstream = {n: self._torch.ones_like(outputs[n]) for n in self._differentiable}
        gradients = self._backward(outputs)
        tensor = self._torch.Tensor
        return [value.detach().clone() if isinstance(value, tensor) else value for value in (*outputs, *gradients)]

    def _run(self) -> list[Any]:
        """Run on new tensors over the same memory, so that what autograd keeps of them belongs to this run."""
        with self._torch.enable_grad():
            given = {n: tensor.detach().requires_grad_(n in self._trained) for n, tensor in self._held.items()}
            args, kwargs = self._tree.tree_unflatten(
                [given.get(n, leaf) for n, leaf in enumerate(self._leaves)], self._shape
            )
            with self._root.own_casts():
                outputs, self._outputs_shape = self._tree.tree_flatten(self._work(*args, **kwargs))
        self._check(outputs, given)
        self._given = given
        return outputs  # type: ignore[no-any-return]

    def _check(self, outputs: list[Any], given: dict[int, Any]) -> None:
        torch, taken = self._torch, {argument.untyped_storage().data_ptr() for argument in given.values()}
        for output in outputs:
            if isinstance(output, torch.Tensor):
                if type(output) is not torch.Tensor or output.device.type != self._recorder.device_type:
                    raise EntryDeclined("it returns a tensor that is not on the GPU, or a tensor subclass")
                if output.untyped_storage().data_ptr() in taken:
                    raise EntryDeclined("it returns its arguments, or a part of them")
            elif not isinstance(output, PLAIN):
                raise EntryDeclined(f"it returns {type(output).__name__}, which may hold anything")
        self._differentiable = [
            n for n, output in enumerate(outputs) if isinstance(output, torch.Tensor) and output.requires_grad
        ]
        if not self._differentiable or not self._trained:
            raise EntryDeclined("it returns nothing to differentiate")

    def _backward(self, outputs: list[Any]) -> list[Any]:
        sources = [self._given[n] for n in self._trained]
        trained = [outputs[n] for n in self._differentiable]
        found = gradients_of(trained, sources, list(self._upstream.values()), allow_unused=True)
        self._given = {}
        return [
            None if gradient is None else self._shared.gradient(n, self._held[n]).copy_(gradient)
            for n, gradient in zip(self._trained, found, strict=True)
        ]

    # Replaying

    def __call__(self, leaves: list[Any]) -> Any:
        self._take({n: leaves[n] for n in self._held})
        replayed = iter(self._apply(*(leaves[n] for n in self._trained)))
        outputs = [next(replayed) if isinstance(output, self._torch.Tensor) else output for output in self._outputs]
        return self._tree.tree_unflatten(outputs, self._outputs_shape)

    def _take(self, tensors: dict[int, Any]) -> None:
        with self._torch.no_grad():
            for n, tensor in tensors.items():
                self._held[n].copy_(tensor)

    def _autograd_function(self) -> Any:
        recorded, torch, shared = self, self._torch, self._shared

        class Replayed(torch.autograd.Function):  # type: ignore[misc,name-defined]
            @staticmethod
            def forward(ctx: Any, *sources: Any) -> Any:
                ctx.set_materialize_grads(False)
                ctx.turn = turn = Turn()
                shared.turn = weakref.ref(turn)
                recorded._forward.replay()
                copies = {
                    n: output.clone() for n, output in enumerate(recorded._outputs) if isinstance(output, torch.Tensor)
                }
                ctx.mark_non_differentiable(*(copy for n, copy in copies.items() if n not in recorded._differentiable))
                return tuple(copies.values())

            @staticmethod
            @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
            def backward(ctx: Any, *upstream: Any) -> Any:
                ctx.turn.end()
                return recorded._derivative(upstream)

        return Replayed

    def _derivative(self, upstream: tuple[Any, ...]) -> tuple[Any, ...]:
        tensors = [n for n, output in enumerate(self._outputs) if isinstance(output, self._torch.Tensor)]
        given = dict(zip(tensors, upstream, strict=True))
        for n, held in self._upstream.items():
            held.zero_() if given[n] is None else held.copy_(given[n])
        self._back.replay()
        return tuple(None if gradient is None else gradient.clone() for gradient in self._gradients)

    def forget(self) -> None:
        """Free the memory, unless a backward is still to come: then it is freed along with that graph."""
        if not self._shared.under_way:
            self._forward.forget()
            self._back.forget()
            self._outputs, self._gradients, self._upstream, self._held = [], [], {}, {}
            self._function = self._apply = None
