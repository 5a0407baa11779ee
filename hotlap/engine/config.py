"""Hyper-parameters from TOML or JSON: every key must be known, and every value of its type and in its range.

A schema is a frozen dataclass, nested as the file is; `value(…)` gives a field its range. Errors name the file, the key
with its path, the value, and what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hotlap.engine.errors import EngineError

T = TypeVar("T")
NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
LONGEST_SHOWN = 80  # letters of a wrong value in an error


class ConfigInvalid(EngineError):
    """The configuration cannot be used; the message names file and key."""


def value(
    default: Any = dataclasses.MISSING,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """Return a dataclass field with a range."""
    limits = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    metadata = {"limits": {name: limit for name, limit in limits.items() if limit is not None}}
    return dataclasses.field(default=default, metadata=metadata)


def read(path: Path | str, schema: type[T], base: Mapping[str, Any] | None = None) -> T:
    """Read the file as an instance of `schema`; missing keys come from `base`, then from the schema's defaults."""
    content = parsed(Path(path))
    return build(schema, merged(base or {}, content), str(path))


def parsed(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigInvalid(f"{path}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path}: it cannot be read ({error})") from error
    if path.suffix not in (".toml", ".json"):
        raise ConfigInvalid(f"{path}: a configuration must be a .toml or .json file")
    try:
        content = json.loads(text, object_pairs_hook=section) if path.suffix == ".json" else toml(text, path)
    except ValueError as error:  # both parsers' errors are of this kind, and say line and column
        raise ConfigInvalid(f"{path}: {error}") from error
    except RecursionError as error:
        raise ConfigInvalid(f"{path}: it is nested too deeply; use no more levels than the schema has") from error
    if not isinstance(content, dict):
        raise ConfigInvalid(f"{path}: it must hold keys and values, not {kind_of(content)}")
    return content


def section(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object and refuse a key given twice, as TOML does by itself."""
    content: dict[str, Any] = {}
    for name, given in pairs:
        if name in content:
            raise ValueError(f"the key {name} is given twice in one section; keep one of them")
        content[name] = given
    return content


def toml(text: str, path: Path) -> dict[str, Any]:
    for name in ("tomllib", "tomli"):  # Python 3.10 has no tomllib
        try:
            content: dict[str, Any] = importlib.import_module(name).loads(text)
            return content
        except ImportError:
            continue
    raise ConfigInvalid(f"{path}: this Python cannot read TOML; type: pip install tomli, or write the file as JSON")


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `over` on top of `base`, section by section."""
    result = dict(base)
    for name, given in over.items():
        inner = result.get(name)
        both = isinstance(inner, Mapping) and isinstance(given, Mapping)
        result[name] = merged(inner, given) if both else given  # type: ignore[arg-type]
    return result


def build(schema: type[T], content: Mapping[str, Any], file: str, path: str = "") -> T:
    """Build an instance of a dataclass from plain values, checking everything."""
    types_of, known = get_type_hints(schema), {field.name: field for field in dataclasses.fields(schema)}  # type: ignore[arg-type]
    for name in content:
        if name not in known:
            raise unknown_key(name, list(known), file, path)
    values = {}
    for name, field in known.items():
        where = f"{path}{name}"
        if name in content:
            values[name] = checked(content[name], types_of[name], field, file, where)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigInvalid(f"{file}: {where} is missing")
    try:
        return schema(**values)
    except ConfigInvalid as error:  # what only the values together show
        raise ConfigInvalid(f"{file}: {error}") from error


def unknown_key(name: str, known: list[str], file: str, path: str) -> ConfigInvalid:
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, 1, cutoff=0.5)
    hint = f"did you mean {path}{near[0]}?" if near else f"known here: {', '.join(known)}"
    return ConfigInvalid(f"{file}: unknown key {path}{name}; {hint}")


def checked(given: Any, wanted: Any, field: dataclasses.Field[Any], file: str, where: str) -> Any:
    if dataclasses.is_dataclass(wanted) and isinstance(wanted, type):
        if not isinstance(given, Mapping):
            raise ConfigInvalid(f"{file}: {where} must be a section with keys, not {kind_of(given)}")
        return build(wanted, given, file, f"{where}.")
    result = converted(given, wanted, file, where)
    check_range(result, field.metadata.get("limits", {}), file, where)
    return result


def converted(given: Any, wanted: Any, file: str, where: str) -> Any:
    """Convert a value to its type: a whole number may stand for a number and text for a path, nothing else for anything
    else. "none" means None where that is an option."""
    options = options_of(wanted)
    for option in sorted(options, key=lambda kind: kind is not type(None)):
        if fits(given, option):
            return taken(given, option, file, where)
    raise ConfigInvalid(f"{file}: {where} = {shown(given)} is {kind_of(given)}; it must be {words(options)}")


def options_of(wanted: Any) -> tuple[Any, ...]:
    return get_args(wanted) if get_origin(wanted) in (Union, types.UnionType) else (wanted,)


def fits(given: Any, option: Any) -> bool:
    """Return whether a value is of this kind; the contents of a list or a section are checked by `taken`."""
    kind = get_origin(option) or option
    if kind is type(None):
        return given is None or given == "none"  # TOML has no null
    if kind is Literal:
        return any(given == literal and type(given) is type(literal) for literal in get_args(option))
    if kind in (tuple, list):
        return isinstance(given, list)
    if kind is dict or dataclasses.is_dataclass(kind):
        return isinstance(given, Mapping)
    if kind is float:
        return isinstance(given, int | float) and not isinstance(given, bool)
    if kind is Path:
        return isinstance(given, str | Path)
    return isinstance(kind, type) and type(given) is kind


def taken(given: Any, option: Any, file: str, where: str) -> Any:
    kind, inner = get_origin(option) or option, get_args(option)
    if kind is type(None):
        return None
    if kind is float:
        return finite(given, file, where)
    if kind is Path:
        return Path(given)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return build(kind, given, file, f"{where}.")
    if kind is dict and inner:
        return {
            converted(name, inner[0], file, where): converted(item, inner[1], file, f"{where}.{name}")
            for name, item in given.items()
        }
    if kind in (tuple, list):
        pairs = zip(given, item_types(option, given, file, where), strict=True)
        return kind(converted(item, wanted, file, f"{where}[{n}]") for n, (item, wanted) in enumerate(pairs))
    return given


def item_types(option: Any, given: list[Any], file: str, where: str) -> Sequence[Any]:
    """Return the type of each value: the same for all, or in a tuple without `...` one for each position."""
    inner = get_args(option)
    if not is_fixed(option):
        return [inner[0] if inner else type(item) for item in given]
    if len(given) != len(inner):
        raise ConfigInvalid(f"{file}: {where} has {len(given)} values; it must be {in_words(option)}")
    return inner


def is_fixed(option: Any) -> bool:
    return get_origin(option) is tuple and get_args(option)[-1:] != (...,)


def finite(given: float, file: str, where: str) -> float:
    try:
        number = float(given)
    except OverflowError as error:
        raise ConfigInvalid(f"{file}: {where} = {shown(given)} is too large for a number; use at most 1e308") from error
    if not math.isfinite(number):
        raise ConfigInvalid(f"{file}: {where} = {number} is not a finite number")
    return number


def check_range(given: Any, limits: Mapping[str, float], file: str, where: str) -> None:
    for number in numbers_in(given):
        good = {
            "at least": lambda limit, n=number: n >= limit,
            "at most": lambda limit, n=number: n <= limit,
            "above": lambda limit, n=number: n > limit,
            "below": lambda limit, n=number: n < limit,
        }
        if not all(good[name](limit) for name, limit in limits.items()):
            rule = " and ".join(f"{name} {in_full(limit)}" for name, limit in limits.items())
            raise ConfigInvalid(f"{file}: {where} = {shown(number)} is out of range; it must be {rule}")


def in_full(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def numbers_in(given: Any) -> Iterator[float]:
    """Yield every number in a value, since a field's range holds for each; a section has ranges of its own."""
    if isinstance(given, tuple | list | dict):
        for item in given.values() if isinstance(given, dict) else given:
            yield from numbers_in(item)
    elif isinstance(given, int | float) and not isinstance(given, bool):
        yield given


def words(options: tuple[Any, ...]) -> str:
    return " or ".join(map(in_words, options))


def in_words(option: Any) -> str:
    kind, inner = get_origin(option) or option, get_args(option)
    if kind is Literal:
        return "one of " + ", ".join(map(shown, inner))
    if kind is type(None):
        return '"none"'
    if is_fixed(option):
        return f"a list of {len(inner)}: {', '.join(words(options_of(item)) for item in inner)}"
    if kind in (tuple, list):
        return f"a list, each {words(options_of(inner[0]))}" if inner else "a list"
    if kind is dict:
        return f"a section, each value {words(options_of(inner[1]))}" if inner else "a section"
    return "a section with keys" if dataclasses.is_dataclass(kind) else NAMES.get(kind, str(option))


def kind_of(given: Any) -> str:
    if given is None:
        return "nothing"
    if isinstance(given, Mapping):
        return "a section"
    return "a list" if isinstance(given, list) else NAMES.get(type(given), f"a {type(given).__name__}")


def shown(given: Any) -> str:
    text = json.dumps(given, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
