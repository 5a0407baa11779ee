"""LSTM and GRU that stand in for torch.nn's, and when they step aside for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from hotlap.engine.nn import choosing
from hotlap.engine.nn.ops import recurrent
from hotlap.engine.nn.stack import Given, Shape

log = logging.getLogger("hotlap.engine.nn")
PRECISIONS = (None, "tf32", "ieee")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_told: set[str] = set()


class LSTM(torch.nn.LSTM):
    """torch.nn.LSTM with kernels that keep the recurrent weights on the chip for the whole sequence.

    Constructor, parameters, state_dict, initialisation and outputs are torch.nn.LSTM's. `precision` says how float32
    products are computed on a GPU: "tf32", "ieee", or None for what torch.backends.cudnn.allow_tf32 says, as for cuDNN.
    """

    precision: str | None = None

    def __init__(self, *args: Any, precision: str | None = None, **kwargs: Any) -> None:
        if kwargs.get("proj_size", 0) or any(args[7:8]):
            raise ValueError("hotlap.engine.nn.LSTM has no proj_size; use torch.nn.LSTM for projections")
        _check_precision(precision)
        super().__init__(*args, **kwargs)
        self.precision = precision

    def forward(self, input: Any, hx: Any = None) -> Any:  # noqa: A002 torch's name
        return forward(self, super().forward, input, hx)


class GRU(torch.nn.GRU):
    """torch.nn.GRU with kernels that keep the recurrent weights on the chip; see LSTM."""

    precision: str | None = None

    def __init__(self, *args: Any, precision: str | None = None, **kwargs: Any) -> None:
        _check_precision(precision)
        super().__init__(*args, **kwargs)
        self.precision = precision

    def forward(self, input: Any, hx: Any = None) -> Any:  # noqa: A002 torch's name
        return forward(self, super().forward, input, hx)


def _check_precision(precision: str | None) -> None:
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is none of 'tf32', 'ieee' and None")


def forward(module: Any, plain: Callable[..., Any], given: Any, hx: Any = None) -> Any:
    """The module's outputs by the fastest way known for its shape; `plain` is torch.nn's own forward."""
    why = why_not(module, given, hx)
    if why is not None:
        if not torch.compiler.is_compiling():
            tell(f"{type(module).__name__} uses torch.nn's path: {why}")
        return plain(given, hx)
    kind = "lstm" if isinstance(module, torch.nn.LSTM) else "gru"
    x = given if given.dim() == 3 else given.unsqueeze(0 if module.batch_first else 1)
    x = x.transpose(0, 1) if module.batch_first else x
    exact = is_exact(module)
    autocast = _autocast_dtype()
    variant = _variant(traits(module, kind, x, exact, autocast), x.device)
    if variant == choosing.CUDNN:
        return plain(given, hx)
    h0, c0 = _states(kind, hx, given.dim() == 3)
    y, h_n, c_n = run(module, kind, x, h0, c0, variant, exact, autocast)
    return _shaped(module, kind, given.dim() == 3, y, h_n, c_n)


def run(
    module: Any, kind: str, x: Tensor, h0: Tensor | None, c0: Tensor | None, variant: str, exact: bool,
    autocast: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, h_n, c_n of a module that why_not has nothing against; x has time first."""
    wanted = autocast or x.dtype
    inside = torch.float64 if x.dtype == torch.float64 else torch.float32  # low precision accumulates in float32
    flat = [getattr(module, name) for name in module._flat_weights_names]
    given = Given(
        x.to(inside).contiguous(),
        None if h0 is None else h0.to(inside),
        None if c0 is None else c0.to(inside),
        [one.to(inside) for one in flat],
    )
    shape = Shape(
        kind, module.num_layers, 2 if module.bidirectional else 1, module.hidden_size, module.bias,
        float(module.dropout) if module.training else 0.0, exact, variant,
    )  # fmt: skip
    y, h_n, c_n = recurrent(shape, given)
    return y.to(wanted), h_n.to(wanted), c_n.to(wanted)


def _states(kind: str, hx: Any, batched: bool) -> tuple[Tensor | None, Tensor | None]:
    if hx is None:
        return None, None
    h0, c0 = hx if kind == "lstm" else (hx, None)
    if not batched:
        h0, c0 = h0.unsqueeze(1), None if c0 is None else c0.unsqueeze(1)
    return h0, c0


def _shaped(module: Any, kind: str, batched: bool, y: Tensor, h_n: Tensor, c_n: Tensor) -> Any:
    if not batched:
        y, h_n, c_n = y.squeeze(1), h_n.squeeze(1), c_n.squeeze(1) if kind == "lstm" else c_n
    elif module.batch_first:
        y = y.transpose(0, 1)
    return y, (h_n, c_n) if kind == "lstm" else h_n


def is_exact(module: Any) -> bool:
    precision = getattr(module, "precision", None)
    return precision == "ieee" or (precision is None and not torch.backends.cudnn.allow_tf32)


def _autocast_dtype() -> torch.dtype | None:
    """Of outputs; torch runs cuDNN's layers in float16 whatever type autocast was asked for."""
    return torch.float16 if torch.is_autocast_enabled("cuda") else None


def traits(module: Any, kind: str, x: Tensor, exact: bool, autocast: torch.dtype | None) -> tuple[str | int, ...]:
    """The fields of a choosing.Key, in its order."""
    return (
        kind,
        _plain(x.shape[1]),
        _plain(x.shape[0]),
        _plain(module.input_size),
        _plain(module.hidden_size),
        _plain(module.num_layers),
        2 if module.bidirectional else 1,
        module.bias,
        str(autocast or x.dtype).removeprefix("torch."),
        exact,
        torch.is_grad_enabled(),
    )


def _plain(size: int) -> int:
    """No symbol, where Dynamo has one: a choice, and with it a compiled graph, is for one shape."""
    return len(range(size))


def _variant(found: tuple[str | int, ...], device: torch.device) -> str:
    if torch.compiler.is_compiling():
        name: str = choosing.remembered(device.index or 0, *found)
        return name
    return choosing.choice(choosing.Key(*found), device)  # type: ignore[arg-type]


# When torch.nn's path is taken


def why_not(module: Any, given: Any, hx: Any) -> str | None:
    """Also where the arguments are wrong: torch's own path then says so."""
    if isinstance(given, PackedSequence):
        return "packed sequences"
    if type(given) not in (Tensor, torch.nn.Parameter) or torch._C._get_tracing_state() is not None:
        return "not a plain tensor"
    return _of_options(module) or _of_place(module, given) or _of_shapes(module, given, hx)


def _of_options(module: Any) -> str | None:
    if getattr(module, "proj_size", 0):
        return "projections"
    if len(module._flat_weights_names) != len(module._flat_weights):
        return "weights that are not where torch.nn puts them"
    return None


def _of_place(module: Any, given: Tensor) -> str | None:
    weight = module.weight_hh_l0
    if choosing.is_forced():
        return None
    if given.device.type != "cuda" or torch.version.cuda is None:
        return f"on {given.device.type}"
    if weight.device != given.device:
        return "weights on another device"
    if given.dtype not in DTYPES or weight.dtype not in DTYPES:
        return str(given.dtype)
    if given.dtype != weight.dtype and _autocast_dtype() is None:
        return "weights of another dtype"
    return None


def _of_shapes(module: Any, given: Tensor, hx: Any) -> str | None:
    if given.dim() not in (2, 3) or given.shape[-1] != module.input_size:
        return "inputs of another shape"
    if given.numel() == 0:
        return "no inputs"
    if hx is None:
        return None
    lstm = isinstance(module, torch.nn.LSTM)
    states = hx if lstm and isinstance(hx, (tuple, list)) else (hx,)
    batch = () if given.dim() == 2 else (given.shape[0] if module.batch_first else given.shape[1],)
    wanted = (module.num_layers * (2 if module.bidirectional else 1), *batch, module.hidden_size)
    fits = len(states) == (2 if lstm else 1) and all(
        isinstance(one, Tensor) and tuple(one.shape) == wanted and one.device == given.device for one in states
    )
    return None if fits else "states of another shape"


def tell(text: str) -> None:
    """One debug line for each reason."""
    if text not in _told:
        _told.add(text)
        log.debug("%s", text)
