"""Parse option values as people write them: durations, shares and sizes."""

from __future__ import annotations

import re

import click

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
MIB = {"M": 1.0, "G": 1024.0, "T": 1024.0**2}


def seconds(context: click.Context, option: click.Parameter, text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if found and not found[2]:
        raise click.BadParameter(f"{text} has no unit; did you mean {text}s or {text}m?")
    value = float(found[1]) * UNITS[found[2]] if found else 0.0
    if value <= 0:
        raise click.BadParameter(f"{text!r} is not a duration; write 90s, 10m or 1h")
    return value


def share(context: click.Context, option: click.Parameter, text: str) -> float:
    """Parse a share of at least 0 % and below 100 %."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is not a percentage; write 3%")
    if float(found[1]) >= 100:
        raise click.BadParameter(f"{text} must be below 100%; write 3%")
    return float(found[1]) / 100


def some_share(context: click.Context, option: click.Parameter, text: str) -> float:
    """Parse a share above 0 %."""
    value = share(context, option, text)
    if value == 0:
        raise click.BadParameter(f"{text} must be above 0%; write 2%")
    return value


def size_mb(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT])(?:i?B)?", text.strip(), re.IGNORECASE)
    value = float(found[1]) * MIB[found[2].upper()] if found else 0.0
    if value <= 0:
        raise click.BadParameter(f"{text!r} is not a size; write 500M or 16G")
    return value
