"""Answers whether a text contains a word, which is asked of every file for hundreds of words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

_NAME = re.compile(r"\w+", re.ASCII)
_SPACES = bytes(code if code < 128 and _NAME.match(chr(code)) else ord(" ") for code in range(256))


class Words:
    """The distinct names, keywords and numbers of a text, a fraction of its length."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._names = b"\n".join(set(text.encode("ascii", "replace").translate(_SPACES).split()))

    def __contains__(self, word: str) -> bool:
        """Return exactly what `word in text` does."""
        return self.mentions(word) and word in self.text

    def mentions(self, word: str) -> bool:
        """Return False only if the text does not contain the word."""
        return _core(word) in self._names

    def present(self, sought: Mapping[str, bytes], text: str) -> list[str]:
        """Return which of the words the text, or a part of it, contains."""
        names = self._names
        return [word for word, core in sought.items() if core in names and word in text]


def cores(words: Iterable[str]) -> dict[str, bytes]:
    """Return the words with what is looked up first of each."""
    return {word: _core(word) for word in words}


@cache
def _core(word: str) -> bytes:
    """Return the longest part of a word that lies within a name, such as `set_to_none` of `(set_to_none=`."""
    return max(_NAME.findall(word), key=len, default="").encode("ascii")
