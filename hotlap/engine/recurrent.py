"""Recurrent layers whose state is declared: zero for every batch, or carried from one batch to the next.

Zero is right for shuffled windows: a state left by another window says nothing about this one, and carrying it makes
the loss explode. Carrying is right for windows that follow each other, lane by lane, unshuffled (CarriedWindows).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hotlap.engine.errors import EngineError
from hotlap.engine.recurrent_host import use_faster_layers

State = Literal["zero", "carry"]


class StateRefused(EngineError):
    """The state would be carried between rows that do not follow each other."""


class Recurrent(nn.Module):
    """LSTM or GRU layers that return their last step, or with `last=False` all steps.

    state="zero": `forward(window)`; the layers make the zeros themselves, on the device.
    state="carry": `forward(window, fresh)` with batches of exactly `lanes` rows; `fresh` marks the lanes that begin a
    new series. The state lives in two buffers made once, is written in place (a captured graph reads their addresses),
    gets no gradient from later batches, and is saved with the weights: a run resumed within an epoch continues with it.
    The trainer zeroes it when an epoch and an evaluation begin.
    """

    def __init__(
        self,
        cell: Literal["lstm", "gru"],
        features: int,
        hidden: int,
        layers: int = 1,
        *,
        dropout: float = 0.0,
        last: bool = True,
        state: State = "zero",
        lanes: int | None = None,
    ) -> None:
        super().__init__()
        if cell not in ("lstm", "gru"):
            raise EngineError(f"unknown recurrent cell {cell!r}; use 'lstm' or 'gru'")
        if (state == "carry") != (lanes is not None):
            raise StateRefused(
                f"state={state!r} with lanes={lanes}: give lanes, the batch size, with state='carry' and only then"
            )
        kind = nn.LSTM if cell == "lstm" else nn.GRU
        self.layers: nn.RNNBase = kind(features, hidden, layers, batch_first=True, dropout=dropout)
        self.state, self.lanes, self.last = state, lanes, last
        for name in self._state_names() if lanes is not None else ():
            self.register_buffer(name, torch.zeros(layers, lanes or 1, hidden))

    def _state_names(self) -> tuple[str, ...]:
        return ("carried_h", "carried_c") if isinstance(self.layers, nn.LSTM) else ("carried_h",)

    def forward(self, window: Tensor, fresh: Tensor | None = None) -> Tensor:
        if self.state == "zero":
            outputs, _ = self.layers(window)
        else:
            outputs = self._carried(window, fresh)
        result: Tensor = outputs[:, -1] if self.last else outputs
        return result

    def _carried(self, window: Tensor, fresh: Tensor | None) -> Tensor:
        if window.shape[0] != self.lanes:
            raise StateRefused(
                f"a batch of {window.shape[0]} rows cannot continue {self.lanes} lanes; "
                f"set batch_size and evaluation_batch to {self.lanes}"
            )
        buffers = [getattr(self, name) for name in self._state_names()]
        begin = [carried.clone() for carried in buffers]  # the backward pass needs what the update below overwrites
        if fresh is not None:
            _require_marks(fresh)
            keep = (~fresh).to(begin[0].dtype).view(1, -1, 1)
            begin = [state * keep for state in begin]
        outputs, after = self.layers(window, tuple(begin) if len(begin) == 2 else begin[0])
        with torch.no_grad():
            for carried, new in zip(buffers, after if isinstance(after, tuple) else (after,), strict=True):
                carried.copy_(new)
        return outputs  # type: ignore[no-any-return]

    def reset(self) -> None:
        """Zero the state in place, as at the start of an epoch and around an evaluation."""
        if self.state == "carry":
            for name in self._state_names():
                getattr(self, name).zero_()


def carrying(model: nn.Module) -> Iterator[Recurrent]:
    return (module for module in model.modules() if isinstance(module, Recurrent) and module.state == "carry")


def _require_marks(fresh: Tensor) -> None:
    if fresh.dtype is not torch.bool:
        raise StateRefused(
            f"fresh is {fresh.dtype}, not bool: it marks the lanes that begin a new series, and is the second tensor "
            "of a batch of CarriedWindows; use these for training and validation, with Trainer(…, inputs=2)"
        )


def require_order(
    model: nn.Module, shuffle: bool, batch_size: int, source: Any = None, split: str = "training"
) -> None:
    """Refuse to carry a state over shuffled rows, rows that do not continue each other, or batches of another size."""
    for module in carrying(model):
        if shuffle:
            raise StateRefused(
                "state='carry' with shuffled rows: each state would continue from an unrelated window; "
                "set shuffle=False and train on CarriedWindows, or use state='zero'"
            )
        if source is not None and not getattr(source, "ordered", False):
            raise StateRefused(
                f"state='carry' with {split} data of {type(source).__name__}, whose batches do not continue each "
                f"other; use CarriedWindows(…, lanes={module.lanes})"
            )
        lanes = getattr(source, "lanes", module.lanes)
        if not batch_size == lanes == module.lanes:
            raise StateRefused(
                f"{split} batches of {batch_size} rows cannot continue {module.lanes} lanes (the data has {lanes}); "
                "make batch_size, evaluation_batch and the lanes of data and model equal"
            )


def reset_state(model: nn.Module) -> None:
    for module in carrying(model):
        module.reset()


def recurrent_layers(model: nn.Module) -> Iterator[nn.RNNBase]:
    return (module for module in model.modules() if isinstance(module, nn.RNNBase))


def is_flat(layer: nn.RNNBase) -> bool:
    """Return whether all weights lie in order in one piece of memory, so that cuDNN copies nothing before each call."""
    weights = [weight for weight in layer._flat_weights if weight is not None]
    if len({weight.untyped_storage().data_ptr() for weight in weights}) != 1:
        return False
    # cuDNN asks for one storage with the weights as non-overlapping views of it
    places = sorted((weight.storage_offset(), weight.numel()) for weight in weights)
    return all(start + size <= after for (start, size), (after, _) in itertools.pairwise(places))


def fast_layers(model: nn.Module, device: torch.device, batch_size: int, steps: int) -> list[str]:
    """Use flat weights and the kernels of hotlap.engine.nn on CUDA, and on a CPU the faster of torch's layers and the
    engine's, as measured. Return lines that say what was done.

    Call it once the model is on its device, before the optimizer is made.
    """
    if device.type == "cuda":
        moved, swapped = flatten(model), use_kernels(model)
        counts = {"moved into one piece of memory": moved, "run by hotlap's kernels where those are faster": swapped}
        return [f"{count} recurrent layers {what}" for what, count in counts.items() if count]
    return use_faster_layers(model, batch_size, steps)


def use_kernels(model: nn.Module) -> int:
    """Run every plain nn.LSTM and nn.GRU of the model by hotlap.engine.nn; parameters and names stay the same.

    A shape is measured at its first call, unless that is within a capture: the trainer rehearses a step before.
    """
    from hotlap.engine.nn import GRU, LSTM

    ours: dict[type[nn.Module], type[nn.RNNBase]] = {nn.LSTM: LSTM, nn.GRU: GRU}
    chosen = [module for module in recurrent_layers(model) if type(module) in ours and not module.proj_size]
    for layer in chosen:
        layer.__class__ = ours[type(layer)]
    return len(chosen)


def flatten(model: nn.Module) -> int:
    """Move the weights of each recurrent layer on CUDA into one piece of memory; return how many layers were moved.

    Call it after the model is on its device and before the optimizer is made or a graph is captured: the weights get
    new memory. `load_state_dict` writes in place and keeps them flat. On a CPU there is nothing to gain.
    """
    moved = 0
    for layer in recurrent_layers(model):
        if next(layer.parameters()).is_cuda and not is_flat(layer):
            layer.flatten_parameters()
            moved += 1
    return moved
