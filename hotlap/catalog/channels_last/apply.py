"""Try each root with channels-last inputs; if it runs and draws the same random numbers, convert its inputs.

Only inputs are converted: each layer passes the layout on to the next. Weights, gradients and the optimizer's state
stay as they are, so nothing outside a training call can see that layout.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hotlap.runtime.draws import Buffers, Position, cuda_devices, has_own_generator, recorded_draws
from hotlap.runtime.rehearsal import RehearsalResult, compiled, hooked, parallel, rehearse, signature
from hotlap.runtime.silence import silenced
from hotlap.runtime.site import Original, Site

VIEW = "view size is not compatible"  # torch's message when a view is impossible in this layout
NEEDS_FIRST = "the model takes a view that needs the channels first"
OTHER_NUMBERS = "the model draws random numbers in the order of memory: with the channels last they would differ"
BEGAN = "the model draws random numbers that it did not draw when it was tried"
MOST_SIGNATURES = 3  # of inputs, each tried by itself


def apply(site: Site) -> None:
    site.when_root(partial(_consider, site))


def _consider(site: Site, root: Any) -> None:
    weights = _convolution_weights(site.torch, root)
    if not weights:
        site.no_effect("the model has no convolutions over images or volumes")
    elif not site.asked and any(weight.device.type == "cpu" for weight in weights):
        site.no_effect("on some CPUs it is many times slower; ask for it by name, or let hotlap tune measure it")
    elif not any(weight.is_contiguous() for weight in weights):
        site.no_effect("its weights already have the channels last")
    elif (name := parallel(root)) is not None:
        site.refused(f"nothing can be tried inside {name}")
    elif compiled(root):
        site.refused("the model is compiled, which chooses layouts by itself")
    elif hooked(site.torch, root):
        site.refused("hooks in the model may rely on the layout of what they see")
    else:
        site.stand_in_for(root, ChannelsLast(site, len(weights), cuda_devices(root)).call)


def _convolution_weights(torch: Any, root: Any) -> list[Any]:
    kinds = tuple(getattr(torch.nn, f"Conv{name}{size}d") for name in ("", "Transpose") for size in (2, 3))
    return [module.weight for module in root.modules() if isinstance(module, kinds) and module.weight is not None]


class Unfit(Exception):
    """Raised with the reason why this root keeps its layout."""


class ChannelsLast:
    """Converts the inputs of one root in training; its calls in evaluation run unchanged."""

    def __init__(self, site: Site, convolutions: int, devices: tuple[int, ...]) -> None:
        self._site, self._torch = site, site.torch
        self._convolutions, self._devices = convolutions, devices
        self._usual: dict[Any, Any] = {}  # by signature of the inputs: how far the streams advance in a call
        self._buffers: Any = None
        self._unfit = False

    def call(self, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._unfit or not module.training or not self._torch.is_grad_enabled():
            return original(*args, **kwargs)
        key = signature(self._torch, args, kwargs)
        if key not in self._usual:
            return self._first(key, original, module, args, kwargs)
        return self._moved(self._usual[key], original, args, kwargs)

    def _first(self, key: Any, original: Original, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the first call with such inputs unchanged, and note how far the streams advance."""
        if len(self._usual) >= MOST_SIGNATURES:
            return original(*args, **kwargs)
        try:
            self._try(module, args, kwargs)
        except Unfit as why:
            self._unfit = True
            self._site.refused(str(why))
            return original(*args, **kwargs)
        position = Position(self._torch, self._devices)
        outcome = original(*args, **kwargs)
        self._usual[key] = position.distance()
        self._buffers = Buffers(self._torch, module)
        self._site.applied(f"{self._convolutions} convolutions")
        return outcome

    def _try(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check that both layouts draw by the same operations on tensors of the same shape and order."""
        plain, drawn = self._rehearsed(module, args, kwargs)
        _, drawn_last = self._rehearsed(module, *shaped(self._torch, (args, kwargs), last=True))
        if plain.kept:
            raise Unfit("its forward sets attributes, which may show the layout or count the calls")
        if drawn != drawn_last:
            raise Unfit(OTHER_NUMBERS)
        if has_own_generator(drawn) or (drawn and not self._devices):
            raise Unfit("the model draws random numbers from a stream that does not show how many")

    def _rehearsed(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[RehearsalResult, list[Any]]:
        try:
            with recorded_draws(self._torch) as drawn:
                return rehearse(self._torch, module, args, kwargs), drawn
        except RuntimeError as error:
            raise Unfit(NEEDS_FIRST if VIEW in str(error) else str(error).splitlines()[0]) from error

    def _moved(self, usual: Any, original: Original, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call with converted inputs. If it draws differently from the trial, repeat it unchanged."""
        position = Position(self._torch, self._devices)
        self._buffers.hold()
        args_last, kwargs_last = shaped(self._torch, (args, kwargs), last=True)
        try:
            outcome = original(*args_last, **kwargs_last)
        except RuntimeError as error:
            if VIEW not in str(error):
                raise
            why = NEEDS_FIRST
        else:
            if position.distance() == usual:
                return shaped(self._torch, outcome, last=False)
            why = BEGAN
        position.put_back()
        self._buffers.put_back()
        self._site.withdraw(why)
        with silenced():
            return original(*args, **kwargs)


def shaped(torch: Any, structure: Any, last: bool) -> Any:
    """Return the structure with its image-like tensors in the requested layout; the given tensors are not modified."""
    from torch.utils._pytree import tree_map

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() not in formats or not leaf.is_floating_point():
            return leaf
        if last and leaf.shape[1] == 1 and leaf.is_contiguous():
            return _single_channel_last(leaf)
        return leaf.contiguous(memory_format=formats[leaf.dim()] if last else torch.contiguous_format)

    return tree_map(moved, structure)


def _single_channel_last(tensor: Any) -> Any:
    """Mark the layout by the strides: with one channel both layouts are the same memory, and later layers read them."""
    strides = list(tensor.stride())
    strides[1] = 1
    return tensor.as_strided(tensor.shape, strides)
