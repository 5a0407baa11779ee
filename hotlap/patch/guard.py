"""Our own errors never stop the user's training: they are logged, printed once, and what failed is switched off.

An error that reaches our code from outside, from a signal handler of the program or another thread, is the program's,
and passes through.

Under HOTLAP_STRICT=1, as in our tests, our errors are raised instead.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotlap.patch.signals import comes_from_outside
from hotlap.patch.voice import say
from hotlap.records import private

FILE = "hotlap-errors.txt"


class Guard:
    def __init__(self, folder: Path | None = None, strict: bool | None = None) -> None:
        self.folder = folder
        self.strict = os.environ.get("HOTLAP_STRICT") == "1" if strict is None else strict
        self.failures: list[str] = []

    def run(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the function's result, or None if it failed."""
        try:
            return function(*arguments)
        except Exception as error:  # noqa: BLE001 the guard exists to contain whatever our code raises
            self.failed(what, error)
            return None

    def failed(self, what: str, error: Exception) -> None:
        if self.strict or comes_from_outside(error):
            raise error
        self.failures.append(f"{what}: {type(error).__name__}: {error}")
        self._keep(what, error)
        if len(self.failures) == 1:
            self._say(what, error)

    def _keep(self, what: str, error: Exception) -> None:
        if self.folder is None:
            return
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            with private.unsignalled(), (self.folder / FILE).open("a", encoding="utf-8") as file:
                private.tighten(file.fileno())
                file.write(f"[pid {os.getpid()}] {what}\n{text}\n")
        except OSError:
            return  # a full disk must not become the user's problem either

    def _say(self, what: str, error: Exception) -> None:
        where = f"; details in {self.folder / FILE}" if self.folder else ""
        failed = f"{what} failed ({type(error).__name__}: {error})"
        say(f"{failed} and was switched off; your training continues{where}")
