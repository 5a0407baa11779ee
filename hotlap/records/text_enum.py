"""Enums whose members are texts: written to JSON, printed and compared as what they say."""

from __future__ import annotations

from enum import Enum


class TextEnum(str, Enum):
    """A str that is printed as its value on every Python; a bare `(str, Enum)` prints its name since 3.12."""

    def __str__(self) -> str:
        return str.__str__(self)
