"""Runs the nn.LSTM and nn.GRU layers of each root with hotlap.engine.nn where that is faster than cuDNN.

The layers do not change: class, parameters and state_dict are torch's, and checkpoints contain nothing of hotlap's.
Only calls of their forward come through here. The faster way for a shape is measured once, before a CUDA graph is
captured.
"""

from __future__ import annotations

from typing import Any

from hotlap.loading.identity import ByIdentity
from hotlap.runtime.site import Original, Site


def apply(site: Site) -> None:
    swapped = ReplacedLayers(site)
    site.when_root(swapped.known)


class ReplacedLayers:
    """The layers whose calls are replaced."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._layers: ByIdentity[bool] = ByIdentity()
        self._replaced = False

    def known(self, root: Any) -> None:
        nn, site = self._site.torch.nn, self._site
        layers = [layer for layer in root.modules() if isinstance(layer, nn.LSTM | nn.GRU)]
        plain = [layer for layer in layers if type(layer) in (nn.LSTM, nn.GRU) and on_gpu(layer)]
        taken = [layer for layer in plain if not layer.proj_size and not draws(layer)]
        if not taken:
            site.no_effect(why_none(layers))
            return
        for layer in taken:
            self._layers.put(layer, True)
        if not self._replaced:
            self._replaced = True
            site.ledger.later(self._layers.clear)
            for kind in (nn.LSTM, nn.GRU):
                site.replace(kind, "forward", self._called)
        site.applied(f"{len(taken)} of {len(layers)} recurrent layers, each run the fastest way for its shape")

    def _called(self, original: Original, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if layer not in self._layers or draws(layer):  # a program may set its dropout later
            return original(*args, **kwargs)
        from hotlap.kernels.recurrent.modules import forward

        return _as_torch_calls_it(forward, layer, original, *args, **kwargs)


def _as_torch_calls_it(forward: Any, layer: Any, original: Original, input: Any, hx: Any = None) -> Any:  # noqa: A002
    return forward(layer, original, input, hx)


def on_gpu(layer: Any) -> bool:
    return all(getattr(weight, "is_cuda", False) for weight in layer._flat_weights)


def draws(layer: Any) -> bool:
    """Return whether the layer has dropout between its layers, for which cuDNN draws other random numbers than ours."""
    return bool(layer.dropout) and layer.num_layers > 1


def why_none(layers: list[Any]) -> str:
    if not layers:
        return "the model has no LSTM or GRU"
    if not any(map(on_gpu, layers)):
        return "its recurrent layers are not on a GPU"
    if any(map(draws, layers)):
        return "its recurrent layers have dropout between them, which would draw different random numbers"
    return "its recurrent layers have projections or a custom forward"
