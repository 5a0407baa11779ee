"""What happens in each Python process the command starts: wait for torch, then open the seams and call the agent.

Loader workers stay untouched. Other children of the program may train, so each gets seams of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotlap.model import private
from hotlap.model.codec import from_json
from hotlap.model.session import Session
from hotlap.patch.forks import watch_registrations

MINIMUM_TORCH = (2, 6)
HELLO = "hello"  # files in the session folder: one line each, named by process
PROBLEM = "problem"
CANNOT_PREPARE = 70

_current: Visit | None = None


class Visit:
    """Our stay in one process."""

    def __init__(self, torch: Any, session: Session) -> None:
        from hotlap.patch.guard import Guard
        from hotlap.patch.seams import Seams

        self.torch, self.session = torch, session
        self.seams = Seams(torch, Guard(Path(session.folder)))
        self.finish: Callable[[], Any] | None = None

    def begin(self) -> None:
        module, function = self.session.agent.split(":")
        self.seams.open()
        self.finish = getattr(importlib.import_module(module), function)(self.torch, self.session, self.seams)

    def leave(self) -> None:
        """Gone without a word: for processes that are not ours to watch."""
        self.finish = None
        self.seams.close()


def enter() -> None:
    """Called by the boot file of every Python process of the command."""
    session = read_session()
    watch_registrations()
    if session.early is not None:
        _begin_early(session, session.early)
    note(
        session,
        HELLO,
        f"{sys.executable}\t{sys.version.split()[0]}\t{importlib.util.find_spec('torch') is not None}",
    )
    _import_wrapt().register_post_import_hook(lambda torch: _torch_imported(torch, session), "torch")


def _begin_early(session: Session, early: str) -> None:
    """What must hold before the program's first line, or the program does not run at all."""
    module, function = early.split(":")
    try:
        _import_wrapt()  # which it needs, and an interpreter without hotlap in it may not have
        getattr(importlib.import_module(module), function)(session)
    except Exception as error:  # noqa: BLE001 fails closed: a trial that cannot be kept from writing must not write
        note(session, PROBLEM, f"cannot prepare {sys.executable} ({type(error).__name__}: {error}); please report it")
        os._exit(CANNOT_PREPARE)


def read_session() -> Session:
    path = Path(os.environ["HOTLAP_SESSION"])
    return from_json(Session, path.read_text(encoding="utf-8"), str(path))


def note(session: Session, kind: str, text: str) -> None:
    private.write_text(Path(session.folder) / f"{kind}-{os.getpid()}.txt", text + "\n")


def _import_wrapt() -> Any:
    """The program's wrapt, or ours when its interpreter has none (wrapt works without its compiled part)."""
    if importlib.util.find_spec("wrapt") is not None:
        return importlib.import_module("wrapt")
    sys.path.append(os.environ["HOTLAP_WRAPT"])
    try:
        return importlib.import_module("wrapt")
    finally:
        sys.path.remove(os.environ["HOTLAP_WRAPT"])


def _torch_imported(torch: Any, session: Session) -> None:
    from hotlap.patch.guard import Guard

    Guard(Path(session.folder)).run("entering the process", _open, torch, session)


def _open(torch: Any, session: Session) -> None:
    global _current
    version = str(getattr(torch, "__version__", "unknown"))
    if not _new_enough(version):
        old = f"torch {version} in {sys.executable} is older than 2.6"
        note(session, PROBLEM, f"{old}, which hotlap needs: pip install -U torch")
        return
    _current = Visit(torch, session)
    _current.begin()
    _follow_children(torch)
    _leave_no_frames()


def _new_enough(version: str) -> bool:
    numbers = version.split("+")[0].split(".")[:2]
    return not all(part.isdigit() for part in numbers) or tuple(map(int, numbers)) >= MINIMUM_TORCH


def _follow_children(torch: Any) -> None:
    """Close in loader workers, begin anew in other children; registered once, inherited by fork."""
    import atexit
    from multiprocessing import process, util

    os.register_at_fork(after_in_child=_forked)
    util.register_after_fork(_child_started, lambda _: _child_started(torch))
    atexit.register(_finish)
    spawned = "--multiprocessing-fork" in sys.orig_argv
    if spawned or process.parent_process() is not None:  # where atexit never runs
        util.Finalize(None, _finish, exitpriority=100)
    if spawned and _current is not None:
        _current.seams.ledger.wrap(process.BaseProcess, "run", lambda run: _leaving_workers_alone(run, torch))


def _leaving_workers_alone(run: Callable[[Any], None], torch: Any) -> Callable[[Any], None]:
    """A spawned child learns its target only after torch was imported."""

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
    """The parent's visit is not the child's. A plain os.fork stays without us."""
    if _current is not None:
        _current.leave()


def _child_started(torch: Any) -> None:
    """A multiprocessing child knows its target by now: a loader worker is left alone for good."""
    global _current
    from multiprocessing import util

    if _current is None:
        return
    session = _current.session
    _current.leave()
    _current = None
    if not _is_loader_worker(torch):
        _current = Visit(torch, session)
        _current.begin()
        util.Finalize(None, _finish, exitpriority=100)


def _finish() -> None:
    visit = _current
    if visit is not None and visit.finish is not None:
        visit.seams.guard.run("keeping the observation", visit.finish)


def _leave_no_frames() -> None:
    """A traceback of the user's shows the user's frames: ours are taken out before it is printed."""
    show = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        show(kind, error, without_our_frames(trace))

    if _current is not None:
        sys.excepthook = excepthook
        _current.seams.ledger.later(lambda: _restore_excepthook(excepthook, show))


def _restore_excepthook(ours: Any, before: Any) -> None:
    if sys.excepthook is ours:
        sys.excepthook = before


def without_our_frames(trace: Any) -> Any:
    room = f"{Path(__file__).parent}/"
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(room):
        trace = trace.tb_next
    link = trace
    while link is not None:
        while link.tb_next is not None and link.tb_next.tb_frame.f_code.co_filename.startswith(room):
            link.tb_next = link.tb_next.tb_next
        link = link.tb_next
    return trace
