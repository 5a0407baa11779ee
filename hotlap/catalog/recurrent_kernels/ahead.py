"""Compiles the kernels that a layer may need as soon as its shape is known, beside the training."""

from __future__ import annotations

from typing import Any

from hotlap.catalog.recurrent_kernels.apply import draws, on_gpu
from hotlap.runtime.site import Original, Site


def ahead(site: Site) -> None:
    """Watch for the first training call of a recurrent layer on a GPU, whose shape decides about the kernels."""

    def called(original: Original, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if site.torch.is_grad_enabled() and layer.training and on_gpu(layer) and not draws(layer):
            site.close()
            _compile(site, layer, *args, **kwargs)
        return original(*args, **kwargs)

    for kind in (site.torch.nn.LSTM, site.torch.nn.GRU):
        site.replace(kind, "forward", called)


def _compile(site: Site, layer: Any, input: Any, hx: Any = None) -> None:  # noqa: A002 torch's name
    from hotlap.kernels.cuda.beside import Beside
    from hotlap.kernels.recurrent.modules import compilations

    def over() -> None:
        site.coming = False

    site.coming = True
    Beside(compilations(layer, input, hx), over)
