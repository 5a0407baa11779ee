"""What happens in each Python process of the command: wait for torch, then open the seams and call the agent.

Loader workers stay untouched. Other children of the program may train, so each gets its own seams.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotlap.patch.ending import forget_the_program
from hotlap.patch.forks import never_free, watch_registrations
from hotlap.patch.imports import when_imported
from hotlap.patch.voice import say, speak_to
from hotlap.records import private
from hotlap.records.codec import from_json
from hotlap.records.session import Session

MINIMUM_TORCH = (2, 6)
HELLO = "hello"  # files in the session folder: one line each, named by process
PROBLEM = "problem"
OUTCOMES = "outcomes"
DECISIONS = "decisions"  # the same, for what is decided during training
CANNOT_PREPARE = 70
PACKAGE = __name__.partition(".")[0]  # hotlap, or its name inside the user's process

_current: Visit | None = None


class Visit:
    """Our presence in one process."""

    def __init__(self, torch: Any, session: Session) -> None:
        from hotlap.patch.guard import Guard
        from hotlap.patch.seams import Seams

        self.torch, self.session = torch, session
        self.seams = Seams(torch, Guard(Path(session.folder)))
        self.finish: Callable[[], Any] | None = None

    def begin(self) -> None:
        self.seams.open()
        self.finish = _named(self.session.agent)(self.torch, self.session, self.seams)

    def leave(self) -> None:
        """Leave silently a process that is not ours to watch."""
        self.finish = None
        self.seams.close()

    def leave_in_child(self) -> None:
        """Leave silently a process forked from ours."""
        never_free(self.finish)
        self.finish = None
        self.seams.leave_in_child()


def enter() -> None:
    """Enter the process; called by the boot file in every Python process of the command."""
    session = read_session()
    speak_to(session.ears)
    watch_registrations()
    if session.early is not None:
        _begin_early(session, session.early)
    note(
        session,
        HELLO,
        f"{sys.executable}\t{sys.version.split()[0]}\t{importlib.util.find_spec('torch') is not None}",
    )
    when_imported("torch", lambda torch: _torch_imported(torch, session))
    if session.speaker == os.getpid():
        atexit.register(_last_words, session)


def _named(place: str) -> Callable[..., Any]:
    """Return the function named by "package.module:function"."""
    module, function = place.split(":")
    if module.startswith("hotlap."):
        module = module.replace("hotlap", PACKAGE, 1)
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _begin_early(session: Session, early: str) -> None:
    """Prepare what must hold before the program's first line; if that fails, the program does not run."""
    try:
        _named(early)(session)
    except Exception as error:  # noqa: BLE001 fails closed: a trial that cannot be kept from writing must not run
        note(session, PROBLEM, f"cannot prepare {sys.executable} ({type(error).__name__}: {error}); please report it")
        os._exit(CANNOT_PREPARE)


def read_session() -> Session:
    path = Path(os.environ["HOTLAP_SESSION"])
    return from_json(Session, path.read_text(encoding="utf-8"), str(path))


def note(session: Session, kind: str, text: str) -> None:
    private.write_text(Path(session.folder) / f"{kind}-{os.getpid()}.txt", text + "\n")


def _torch_imported(torch: Any, session: Session) -> None:
    try:
        from hotlap.patch.guard import Guard
    except Exception as error:  # noqa: BLE001 the program may keep Python from importing, and its own import goes on
        say(f"cannot enter {sys.executable} ({type(error).__name__}: {error}); it runs without hotlap")
        return
    Guard(Path(session.folder)).run("entering the process", _open, torch, session)


def _open(torch: Any, session: Session) -> None:
    from hotlap.patch import late_dynamo

    global _current
    version = str(getattr(torch, "__version__", "unknown"))
    if not _new_enough(version):
        old = f"torch {version} in {sys.executable} is older than 2.6"
        note(session, PROBLEM, f"{old}, which hotlap needs: pip install -U torch")
        return
    late_dynamo.prepare()
    _current = Visit(torch, session)
    _current.begin()
    _follow_children(torch)


def _new_enough(version: str) -> bool:
    numbers = version.split("+")[0].split(".")[:2]
    return not all(number.isdigit() for number in numbers) or tuple(map(int, numbers)) >= MINIMUM_TORCH


def _follow_children(torch: Any) -> None:
    """Close the seams in loader workers and open new ones in other children; registered once, inherited by fork."""
    from multiprocessing import process, util

    os.register_at_fork(after_in_child=_forked)
    util.register_after_fork(_child_started, lambda _: _child_started(torch))
    atexit.register(_finish)
    spawned = "--multiprocessing-fork" in sys.orig_argv
    if spawned or process.parent_process() is not None:  # atexit never runs there
        util.Finalize(None, _finish, exitpriority=100)
    if spawned and _current is not None:
        _current.seams.ledger.wrap(process.BaseProcess, "run", lambda run: _leaving_workers_alone(run, torch))


def _leaving_workers_alone(run: Callable[[Any], None], torch: Any) -> Callable[[Any], None]:
    """Leave if this is a loader worker; a spawned child only learns its target after torch was imported."""
    from hotlap.patch.hidden_frames import unseen

    @unseen
    def checked(self: Any) -> None:
        if _current is not None and _is_loader_worker(torch):
            _current.leave()
        run(self)

    return checked


def _is_loader_worker(torch: Any) -> bool:
    from multiprocessing import process

    target = getattr(process.current_process(), "_target", None)
    return target is torch.utils.data._utils.worker._worker_loop


def _forked() -> None:
    """Leave the child, which inherits the parent's visit; after a plain os.fork it runs without us."""
    if _current is not None:
        _current.leave_in_child()


def _child_started(torch: Any) -> None:
    """Begin a new visit in a multiprocessing child, unless its target, known by now, is a loader worker's."""
    global _current
    from multiprocessing import util

    if _current is None:
        return
    session = _current.session
    never_free(_current)
    _current.leave_in_child()
    _current = None
    if not _is_loader_worker(torch):
        _current = Visit(torch, session)
        _current.begin()
        util.Finalize(None, _finish, exitpriority=100)


def _finish() -> None:
    """Finish, then release every object of the program: Python closes a file that it left open when the last reference
    to it goes.
    """
    visit = _current
    if visit is not None and visit.finish is not None:
        finish, visit.finish = visit.finish, None
        visit.seams.guard.run("saving the observation", finish)
        visit.seams.guard.run("leaving the process", visit.seams.close)
        visit.seams.guard.run("leaving the process", forget_the_program)


def _last_words(session: Session) -> None:
    """Say why nothing was applied, if so; a program that failed has said enough itself."""
    if session.quiet or os.getpid() != session.speaker or hasattr(sys, "last_value"):
        return
    folder = Path(session.folder)
    with suppress(OSError):
        problems = [path.read_text(encoding="utf-8").strip() for path in sorted(folder.glob(f"{PROBLEM}-*.txt"))]
        if problems:
            say(f"{problems[-1]}; nothing was applied")
        elif not any(folder.glob(f"{OUTCOMES}-*.json")):
            say("no training step was seen, so nothing was made faster")
