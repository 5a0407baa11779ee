"""Values of options as people write them: durations and shares."""

from __future__ import annotations

import re

import click

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(context: click.Context, option: click.Parameter, text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    value = float(found[1]) * UNITS[found[2] or "s"] if found else 0.0
    if value <= 0:
        raise click.BadParameter(f"{text!r} is no duration; write 90s, 10m or 1h")
    return value


def share(context: click.Context, option: click.Parameter, text: str) -> float:
    """From 0 % on."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if found is None or float(found[1]) >= 100:
        raise click.BadParameter(f"{text!r} is no share; write 3%")
    return float(found[1]) / 100
