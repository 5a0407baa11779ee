"""LSTM and GRU that stand in for torch.nn's, and when they fall back to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from hotlap.kernels.recurrent import selection
from hotlap.kernels.recurrent.key import Key
from hotlap.kernels.recurrent.layer import run, shape_of, shaped, states_of
from hotlap.kernels.recurrent.stack import Shape

log = logging.getLogger("hotlap.kernels")
PRECISIONS = (None, "tf32", "ieee")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_reported: set[str] = set()


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
        raise ValueError(f"precision={precision!r} is not a precision; use 'tf32', 'ieee' or None")


def forward(module: Any, plain: Callable[..., Any], given: Any, hx: Any = None) -> Any:
    """Compute the module's outputs by the fastest way known for its shape; `plain` is torch.nn's own forward."""
    flat = None if torch.compiler.is_compiling() else _plain_weights(module)
    key = None if flat is None else _quick_key(module, given, flat[0])
    way = None if key is None else selection.ways.get(key)
    if way is None:
        way = _way(module, given, hx, key)
    elif hx is not None and _of_shapes(module, given, hx) is not None:
        way = None
    if way is None or way.shape.variant == selection.CUDNN:
        return plain(given, hx)
    batched = given.dim() == 3
    x = given if batched else given.unsqueeze(0 if module.batch_first else 1)
    x = x.transpose(0, 1) if module.batch_first else x
    h0, c0 = (None, None) if hx is None else states_of(way.shape.kind, hx, batched)
    y, h_n, c_n = run(module, x, h0, c0, way.shape, way.autocast, flat)
    return shaped(module, way.shape.kind, batched, y, h_n, c_n)


@dataclass(frozen=True)
class Way:
    """How calls of one kind are run; the variant of the shape may be cudnn."""

    shape: Shape
    autocast: torch.dtype | None


def _plain_weights(module: Any) -> list[Tensor] | None:
    """Return the weights if all are parameters of one type on one device: then memory can be read as it lies."""
    names, held = module._flat_weights_names, module._parameters
    try:
        flat = [held[name] for name in names]
    except KeyError:  # made anew with every call
        return None
    dtype, device = flat[0].dtype, flat[0].device
    for weight in flat:
        if type(weight) is not torch.nn.Parameter or weight.dtype != dtype or weight.device != device:
            return None
    return flat if len(flat) == len(module._flat_weights) else None


def _quick_key(module: Any, given: Any, weight: Tensor) -> tuple[Any, ...] | None:
    """Return all that decides about the way but hx; None if it has to be looked at closely."""
    if type(given) is not Tensor or torch._C._get_tracing_state() is not None:
        return None
    return (
        given.shape, given.dtype, given.device, weight.dtype, weight.device, isinstance(module, torch.nn.LSTM),
        module.input_size, module.hidden_size, module.num_layers, module.bidirectional, module.bias, module.batch_first,
        module.dropout if module.training else 0, module.proj_size, is_exact(module), torch.is_autocast_enabled("cuda"),
        torch.is_grad_enabled(), selection.forced_name(),
    )  # fmt: skip


def _way(module: Any, given: Any, hx: Any, quick: tuple[Any, ...] | None) -> Way | None:
    """Return the way, or None for torch.nn's path. Remembered by its quick key once the choice is made for good."""
    why = why_not(module, given, hx)
    if why is not None:
        if not torch.compiler.is_compiling():
            tell(f"{type(module).__name__} uses torch.nn's path: {why}")
        return None
    found, exact, autocast = traits(module, given), is_exact(module), _autocast_dtype()
    way = Way(shape_of(module, str(found[0]), exact, _variant(found, given.device)), autocast)
    if quick is not None and selection.is_settled(found, given.device):
        selection.remember(quick, way)
    return way


def compilations(module: Any, given: Any, hx: Any = None) -> list[Callable[[], object]]:
    """Return what compiles the kernels that may be the fastest for this call, one job for each kernel."""
    if why_not(module, given, hx) is not None:
        return []
    return selection.compilations(Key(*traits(module, given)), given.device)  # type: ignore[arg-type]


def is_exact(module: Any) -> bool:
    precision = getattr(module, "precision", None)
    return precision == "ieee" or (precision is None and not torch.backends.cudnn.allow_tf32)


def _autocast_dtype() -> torch.dtype | None:
    """Return the type of outputs: torch runs cuDNN's layers in float16 whatever type autocast was given."""
    return torch.float16 if torch.is_autocast_enabled("cuda") else None


def traits(module: Any, given: Tensor) -> tuple[str | int, ...]:
    """Return the fields of a Key, in its order."""
    x = given if given.dim() == 3 else given.unsqueeze(0 if module.batch_first else 1)
    x = x.transpose(0, 1) if module.batch_first else x
    return (
        "lstm" if isinstance(module, torch.nn.LSTM) else "gru",
        _plain(x.shape[1]),
        _plain(x.shape[0]),
        _plain(module.input_size),
        _plain(module.hidden_size),
        _plain(module.num_layers),
        2 if module.bidirectional else 1,
        module.bias,
        str(_autocast_dtype() or x.dtype).removeprefix("torch."),
        is_exact(module),
        torch.is_grad_enabled(),
    )


def _plain(size: int) -> int:
    """Return a number where Dynamo has a symbol: a choice, and with it a compiled graph, is for one shape."""
    return len(range(size))


def _variant(found: tuple[str | int, ...], device: torch.device) -> str:
    if torch.compiler.is_compiling():
        name: str = selection.remembered(device.index or 0, *found)
        return name
    return selection.choice(Key(*found), device)  # type: ignore[arg-type]


# When torch.nn's path is taken


def why_not(module: Any, given: Any, hx: Any) -> str | None:
    """Return why torch.nn's path is taken, or None; if the arguments are wrong, that path says so."""
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
    weights = [getattr(module, name) for name in module._flat_weights_names]
    if any(tensor.device != weight.device or tensor.dtype != weight.dtype for tensor in weights):
        return "weights of several types or devices"
    if not selection.is_forced() and (given.device.type != "cuda" or torch.version.cuda is None):
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
        isinstance(state, Tensor) and tuple(state.shape) == wanted and state.device == given.device for state in states
    )
    if fits and _autocast_dtype() is None and any(state.dtype != given.dtype for state in states):
        return "states of another type"
    return None if fits else "states of another shape"


def tell(text: str) -> None:
    """Log one debug line per reason."""
    if text not in _reported:
        _reported.add(text)
        log.debug("%s", text)
