"""Flattens recurrent weights that torch would otherwise copy into one block at every call.

Moving a module flattens its weights. They become scattered when parameters are replaced or copied: deepcopy,
load_state_dict(assign=True), a model loaded directly onto the GPU, `parameter.data = …`.
"""

from __future__ import annotations

from typing import Any

from hotlap.runtime.site import Site


def apply(site: Site) -> None:
    site.when_root(lambda root: _flatten(site, root))


def _flatten(site: Site, root: Any) -> None:
    layers = [layer for layer in root.modules() if isinstance(layer, site.torch.nn.RNNBase)]
    apart = [layer for layer in layers if on_gpu(layer) and not is_flat(layer)]
    if not apart:
        site.no_effect("their weights are already in one block" if layers else "the model has no recurrent layers")
        return
    for layer in apart:
        layer.flatten_parameters()  # in place: the same parameters, the same values, another address
    done = sum(map(is_flat, apart))
    if done:
        site.applied(f"{done} of {len(layers)} layers had their weights copied into one block at every call")
    else:
        site.no_effect("torch cannot flatten these weights (shared, or of several dtypes)")


def on_gpu(layer: Any) -> bool:
    return all(getattr(weight, "is_cuda", False) for weight in layer._flat_weights)


def is_flat(layer: Any) -> bool:
    """Return whether the weights are laid out as cuDNN requires: in one storage, with biases after all matrices."""
    weights = layer._flat_weights
    if len({weight.untyped_storage().data_ptr() for weight in weights}) > 1:
        return False
    matrices = [weight.storage_offset() for weight in weights if weight.dim() > 1]
    biases = [weight.storage_offset() for weight in weights if weight.dim() == 1]
    return not biases or max(matrices) < min(biases)
