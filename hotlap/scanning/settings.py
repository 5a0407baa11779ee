"""[tool.hotlap] of the nearest pyproject.toml."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.errors import ScanRefused

_LISTS = ("select", "ignore", "exclude")


@dataclass(frozen=True)
class Settings:
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    pedantic: bool = False
    baseline: str | None = None
    unread: str = ""  # why the file could not be used


def settings(start: Path) -> Settings:
    """What the project asks for; nothing where there is no project."""
    for folder in (start.absolute(), *start.absolute().parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            return _from_file(path)
    return Settings()


def _from_file(path: Path) -> Settings:
    toml = _toml()
    if toml is None:
        text = path.read_text(encoding="utf-8", errors="replace")
        asked = "[tool.hotlap]" in text
        return (
            Settings(unread=f"{path} has [tool.hotlap], but Python 3.10 cannot read it; pip install tomli")
            if asked
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
    known = {*_LISTS, "pedantic", "baseline"}
    if not isinstance(table, dict) or set(table) - known:
        unknown = ", ".join(sorted(set(table) - known)) if isinstance(table, dict) else "a value"
        raise ScanRefused(f"[tool.hotlap] of {path} has {unknown}; it takes {', '.join(sorted(known))}")
    for name in _LISTS:
        value = table.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ScanRefused(f"{name} in [tool.hotlap] of {path} must be a list of texts, not {value!r}")
    pedantic, baseline = table.get("pedantic", False), table.get("baseline")
    if not isinstance(pedantic, bool) or not (baseline is None or isinstance(baseline, str)):
        raise ScanRefused(f"in [tool.hotlap] of {path}, pedantic is true or false and baseline a path")
    select, ignore, exclude = (tuple(table.get(name, [])) for name in _LISTS)
    return Settings(select, ignore, exclude, pedantic, str(path.parent / baseline) if baseline else None)
