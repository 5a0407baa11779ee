"""The texts of `hotlap explain` for what a profile finds; optimisations and rules have cards of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("findings.md")


@cache
def cards() -> Mapping[str, str]:
    """Return the text for each code."""
    texts = re.split(r"^(?=# )", _FILE.read_text(encoding="utf-8"), flags=re.M)[1:]
    return {text.partition("\n")[0].removeprefix("# "): text for text in texts}
