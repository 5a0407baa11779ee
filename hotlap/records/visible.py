"""Escapes text that hotlap did not write before it reaches a terminal."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, TypeVar

Record = TypeVar("Record")


def visible(text: str) -> str:
    """Return the text on one line, with whatever a terminal would obey or hide escaped: \\x1b, \\n, \\u202e."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def visible_lines(text: str) -> str:
    """Escape like `visible`, but keep line breaks and tabs."""
    return "".join(char if char in "\n\t" else _spelled(char) for char in text)


def _spelled(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def everywhere(record: Record) -> Record:
    """Return the record with every string in it made visible, at any depth."""
    escaped: Any = _escaped(record)
    return escaped  # type: ignore[no-any-return]


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: _escaped(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **changed)
    if isinstance(value, Mapping | types.MappingProxyType):
        return {_escaped(key): _escaped(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_escaped, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_escaped, value))
    return value
