"""Reads hotlap.metric(name, value) and TensorBoard scalars as they are written. Outside a tune nothing is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Take = Callable[[str, float], None]

_take: Take | None = None
_wanted: str | None = None


def metric(name: str, value: Any) -> None:
    """Report a measure of quality to hotlap, such as metric("val_acc", 0.93). Does nothing outside `hotlap tune`.

    In a tune with this metric the value is read, which waits for a value that is on a device.
    """
    if _take is not None and name == _wanted:
        _take(name, float(value))


def take_to(take: Take | None, wanted: str | None = None) -> None:
    global _take, _wanted
    _take, _wanted = take, wanted


def watch_tag(writer: type, tag: str, take: Take) -> Callable[[Any], Any]:
    """Return a layer around SummaryWriter.add_scalar that also reports the values of one tag."""

    def layer(original: Any) -> Any:
        def add_scalar(self: Any, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
            if name == tag:
                take(name, float(value))
            return original(self, name, value, *args, **kwargs)

        return add_scalar

    return layer
