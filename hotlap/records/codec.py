"""Converts records to JSON and back. The types are the schema: a value of the wrong type is refused with its path."""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import math
import re
import types
import typing
from enum import Enum
from typing import Any, TypeVar

from hotlap.errors import RecordUnreadable

SCHEMA = 1
NOT_FINITE = ("nan", "inf", "-inf")  # written as strings, since JSON has no such numbers
Record = TypeVar("Record")
_encoded = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
# Never written raw: surrogates, with which Python represents a file name that is not UTF-8, and characters that a
# terminal would obey or hide.
_ESCAPED = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def to_json(record: Any) -> str:
    """Write strict JSON: a NaN becomes the string "nan", which from_json reads back."""
    text = _text(_plain(record)) + "\n"
    return _ESCAPED.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _text(value: Any, margin: str = "\n") -> str:
    """Return what json.dumps does with indent=1, which leaves reference cycles behind that a program in whose process
    we write would find with its garbage collector.
    """
    inner = f"{margin} "
    if isinstance(value, dict) and value:
        items = [f"{_encoded(key)}: {_text(item, inner)}" for key, item in value.items()]
        return f"{{{inner}{f',{inner}'.join(items)}{margin}}}"
    if isinstance(value, list) and value:
        return f"[{inner}{f',{inner}'.join([_text(item, inner) for item in value])}{margin}]"
    return repr(value) if type(value) in (int, float) else _encoded(value)


def from_json(kind: type[Record], text: str, source: str, remedy: str = "run the command again") -> Record:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError includes an integer with too many digits
        raise RecordUnreadable(f"{source} is not valid JSON ({error}); {remedy}") from error
    if isinstance(data, dict) and isinstance(data.get("schema"), int) and data["schema"] > SCHEMA:
        raise RecordUnreadable(
            f"{source} has schema {data['schema']}, but this hotlap reads up to {SCHEMA}; type: pip install -U hotlap"
        )
    try:
        return typing.cast(Record, _build(kind, data, ""))
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise RecordUnreadable(
            f"{source} is not a hotlap record: {error.args[0] if error.args else error!r}; {remedy}"
        ) from error


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict | types.MappingProxyType):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value


def _build(kind: Any, data: Any, path: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member(kind, data, path)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _build_optional(arguments, data, path)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(
            _build(argument, item, path) for argument, item in zip(arguments, _as(list, data, path), strict=True)
        )
    if origin is tuple:
        return tuple(_build(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(_as(list, data, path)))
    if origin is collections.abc.Mapping:
        return {key: _build(arguments[1], item, f"{path}.{key}") for key, item in _as(dict, data, path).items()}
    if dataclasses.is_dataclass(kind):
        return _build_record(typing.cast(type, kind), data, path)
    if kind is float and (data in NOT_FINITE if isinstance(data, str) else type(data) is int):
        return float(data)
    return _as(kind, data, path)


def _build_optional(arguments: tuple[Any, ...], data: Any, path: str) -> Any:
    if data is None and type(None) in arguments:
        return None
    (inner,) = [argument for argument in arguments if argument is not type(None)]
    return _build(inner, data, path)


def _build_record(kind: type, data: Any, path: str) -> Any:
    hints = typing.get_type_hints(kind)
    known = _as(dict, data, path)
    for field in dataclasses.fields(kind):
        no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if no_default and field.name not in known:
            raise KeyError(f"{path.lstrip('.') or 'it'} has no {field.name!r}")
    values = {name: _build(hint, known[name], f"{path}.{name}") for name, hint in hints.items() if name in known}
    return kind(**values)


def _member(kind: type[Enum], data: Any, path: str) -> Enum:
    known = [member.value for member in kind]
    if data not in known:
        raise TypeError(f"{path.lstrip('.') or 'it'} should be one of {known}, not {data!r}")
    return kind(data)


def _as(kind: Any, data: Any, path: str) -> Any:
    if kind is Any or (isinstance(data, kind) and not (kind is int and isinstance(data, bool))):
        return data
    raise TypeError(f"{path.lstrip('.') or 'it'} should be {kind.__name__}, not {type(data).__name__}")
