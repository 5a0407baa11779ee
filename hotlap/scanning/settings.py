"""The settings of a project: [tool.hotlap] in the nearest pyproject.toml."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.errors import ScanRefused

_LISTS = ("select", "ignore", "exclude")
_SWITCHES = ("pedantic", "preview")


@dataclass(frozen=True)
class Settings:
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    pedantic: bool = False
    preview: bool = False
    baseline: str | None = None
    unread: str = ""  # why the file could not be used


def settings(start: Path) -> Settings:
    """Return the settings of the project around `start`; the defaults if there is no pyproject.toml."""
    for folder in (start.absolute(), *start.absolute().parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            return _from_file(path)
    return Settings()


def _from_file(path: Path) -> Settings:
    toml = _toml()
    if toml is None:
        text = path.read_text(encoding="utf-8", errors="replace")
        configured = "[tool.hotlap]" in text
        return (
            Settings(unread=f"{path} has [tool.hotlap], but Python 3.10 cannot read TOML; type: pip install tomli")
            if configured
            else Settings()
        )
    try:
        table = toml.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("hotlap", {})
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ScanRefused(f"{path} cannot be read: {error}") from error
    return _checked(table, path)


def _toml() -> Any:
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _checked(table: Any, path: Path) -> Settings:
    keys = {*_LISTS, *_SWITCHES, "baseline"}
    if not isinstance(table, dict) or set(table) - keys:
        unknown = ", ".join(sorted(set(table) - keys)) if isinstance(table, dict) else "a value"
        raise ScanRefused(f"[tool.hotlap] in {path} has {unknown}; it takes {', '.join(sorted(keys))}")
    for name in _LISTS:
        value = table.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ScanRefused(f"{name} in [tool.hotlap] in {path} must be a list of strings, not {value!r}")
    baseline, switches = table.get("baseline"), [table.get(name, False) for name in _SWITCHES]
    if not all(isinstance(value, bool) for value in switches) or not (baseline is None or isinstance(baseline, str)):
        raise ScanRefused(
            f"in [tool.hotlap] in {path}, {' and '.join(_SWITCHES)} must be true or false and baseline a path"
        )
    lists: Any = {name: tuple(table.get(name, [])) for name in _LISTS}
    where = str(path.parent / baseline) if baseline else None
    return Settings(**lists, pedantic=switches[0], preview=switches[1], baseline=where)
