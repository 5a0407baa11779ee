"""Text that we did not write ourselves, before it reaches a terminal."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, TypeVar

Record = TypeVar("Record")


def visible(text: str) -> str:
    """On one line, with whatever a terminal would obey or hide spelled out: \\x1b, \\n, \\u202e."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def visible_lines(text: str) -> str:
    """As visible, for text of several lines; tabs stay too."""
    return "".join(char if char in "\n\t" else _spelled(char) for char in text)


def _spelled(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def everywhere(record: Record) -> Record:
    """The record with every text in it made visible, however deep."""
    made: Any = _made(record)
    return made  # type: ignore[no-any-return]


def _made(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: _made(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **changed)
    if isinstance(value, Mapping | types.MappingProxyType):
        return {_made(key): _made(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_made, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_made, value))
    return value
