"""hotlap.enable(…) and hotlap.disable(): the optimisations from inside a program or notebook."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from hotlap.control.applied_plan import AppliedPlan, lines
from hotlap.patch.ending import forget_the_program
from hotlap.patch.forks import never_free
from hotlap.patch.imports import when_imported
from hotlap.records.plan import Choice, Outcome
from hotlap.records.visible import visible

_enabled: EnabledOptimizations | None = None
_is_registered = False


class EnabledOptimizations:
    """The optimisations that are enabled; as a context manager, until the end of the block."""

    def __init__(self, choices: tuple[Choice, ...], quiet: bool, decides: bool) -> None:
        self._choices, self._quiet, self._decides = choices, quiet, decides
        self._running: AppliedPlan | None = None
        self._over = False

    def torch_imported(self, torch: Any) -> None:
        from hotlap.patch.guard import Guard
        from hotlap.patch.seams import Seams

        if self._over or self._running is not None:
            return
        seams = Seams(torch, Guard())
        seams.open()
        self._running = AppliedPlan(torch, self._choices, seams, self._decides)
        self._running.quiet = self._quiet
        self._running.begin()

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcome of each optimisation so far."""
        return self._running.outcomes if self._running else ()

    def close(self) -> None:
        self._over = True
        if self._running is not None:
            self._running.close()
            self._running.seams.close()

    def leave_in_child(self) -> None:
        """Undo the changes in a process forked from this one."""
        self._over = True
        if self._running is not None and self._running.torch.cuda._is_in_bad_fork():
            self._running.seams.leave_in_child()
        else:
            self.close()

    def __enter__(self) -> EnabledOptimizations:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        disable()

    def __repr__(self) -> str:
        if self._running is None:
            return "waiting for torch to be imported"
        if self._running.deciding is not None:
            return visible(self._running.deciding.line())
        return "\n".join(map(visible, lines(self.outcomes)))


def start(choices: Iterable[Choice], quiet: bool, decides: bool = False) -> EnabledOptimizations:
    """Apply the choices now, or as soon as torch is imported; whatever was enabled before is disabled."""
    global _enabled, _is_registered
    disable()
    if not _is_registered:
        atexit.register(_end)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forked)  # loader workers must run unchanged
        _is_registered = True
    enabled = _enabled = EnabledOptimizations(tuple(choices), quiet, decides)
    if os.environ.get("HOTLAP", "").lower() == "off":
        return enabled
    if "torch" in sys.modules:
        enabled.torch_imported(sys.modules["torch"])
    else:
        when_imported("torch", enabled.torch_imported)
    return enabled


def _end() -> None:
    disable()
    forget_the_program()


def _forked() -> None:
    global _enabled
    if _enabled is not None:
        never_free(_enabled)
        _enabled.leave_in_child()
        _enabled = None


def disable() -> None:
    """Undo everything, so that nothing of hotlap is left in torch. Does nothing if nothing is enabled."""
    global _enabled
    if _enabled is not None:
        _enabled.close()
        _enabled = None
