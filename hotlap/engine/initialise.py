"""Draw weights anew on request; otherwise the engine never changes how a model was initialised.

initialise(model, "kaiming", seed=0)
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from hotlap.engine.errors import BadRecipe

Kind = Literal["kaiming", "xavier", "orthogonal"]


def initialise(model: nn.Module, kind: Kind, seed: int | None = None) -> int:
    """Draw weights of linear, convolutional and recurrent layers by `kind`, with zero biases; return how many layers.

    Recurrent layers get orthogonal matrices from state to state, and an LSTM's forget gates start open, at 1.
    Everything else, such as norms and embeddings, is unchanged, and so are the random streams.
    """
    if kind not in ("kaiming", "xavier", "orthogonal"):
        raise BadRecipe(f"unknown initialisation {kind!r}; use kaiming, xavier or orthogonal")
    generator = torch.Generator().manual_seed(seed if seed is not None else torch.initial_seed() % 2**63)
    drawn = 0
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | _ConvNd):
                _draw(module.weight, kind, generator)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.RNNBase):
                _recurrent(module, kind, generator)
            else:
                continue
            drawn += 1
    return drawn


def _draw(weight: torch.Tensor, kind: str, generator: torch.Generator) -> None:
    """Draw on the host, so that a seed gives the same weights on every device."""
    host = torch.empty(weight.shape, dtype=weight.dtype)
    if kind == "kaiming":
        nn.init.kaiming_uniform_(host, nonlinearity="relu", generator=generator)
    elif kind == "xavier":
        nn.init.xavier_uniform_(host, generator=generator)
    else:
        nn.init.orthogonal_(host, generator=generator)
    weight.copy_(host)


def _recurrent(module: nn.RNNBase, kind: str, generator: torch.Generator) -> None:
    """Draw gate by gate: the gates are stacked in one matrix."""
    for name, parameter in module.named_parameters(recurse=False):
        if name.startswith("weight"):
            for gate in torch.split(parameter, module.hidden_size):
                _draw(gate, "orthogonal" if name.startswith("weight_hh") else kind, generator)
        else:
            parameter.zero_()
            if isinstance(module, nn.LSTM) and name.startswith("bias_ih"):
                parameter[module.hidden_size : 2 * module.hidden_size] = 1.0
