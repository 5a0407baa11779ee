"""hotlap's functions run between two of the program's, but its errors, warnings and stacks do not show them."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import traceback
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotlap.patch import hidden_frames as room
from hotlap.patch import signals, stacks
from hotlap.patch.guard import Guard
from hotlap.patch.hidden_frames import from_line, unseen
from hotlap.patch.ledger import Ledger
from hotlap.patch.seams import Seam
from hotlap.patch.signals import comes_from_outside
from hotlap.patch.silenced_warnings import unwarned
from hotlap.patch.stacks import hide_from_stacks


@pytest.fixture(autouse=True)
def here_is_ours(monkeypatch):
    """hotlap's functions are recognised by their folder; here, functions of this file starting with `our` count too."""
    known = room.is_ours
    for module in (room, stacks, signals):
        monkeypatch.setattr(module, "is_ours", lambda code: known(code) or code.co_name.startswith("our"))


def names(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def raising(kind):
    raise kind("theirs")


@unseen
def ours(call, *args):
    def our_inner():
        return call(*args)

    return our_inner()


def test_a_passing_error_has_no_hotlap_frame():
    with pytest.raises(KeyError) as caught:
        ours(ours, raising, KeyError)
    assert names(caught.value) == [sys._getframe().f_code.co_name, "raising"]


def test_an_internal_error_has_no_hotlap_frame():
    with pytest.raises(TypeError) as caught:
        ours(None)
    assert names(caught.value) == [sys._getframe().f_code.co_name]


def test_chained_errors_have_no_hotlap_frame():
    def wrapping():
        try:
            ours(raising, KeyError)
        except KeyError as error:
            raise ValueError("second") from error

    with pytest.raises(ValueError) as caught:
        ours(wrapping)
    assert names(caught.value) == [sys._getframe().f_code.co_name, "wrapping"]
    assert names(caught.value.__cause__) == ["wrapping", "raising"]
    assert caught.value.__cause__.__context__ is None


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit])
def test_exceptions_that_are_not_errors_pass_through_too(kind):
    with pytest.raises(kind) as caught:
        ours(raising, kind)
    assert names(caught.value) == [sys._getframe().f_code.co_name, "raising"]


def test_a_patch_by_the_ledger_leaves_no_frame():
    owner = SimpleNamespace(call=lambda: raising(KeyError))

    def layer(original):
        def our_wrapper():
            return original()

        return our_wrapper

    ledger = Ledger()
    ledger.wrap(owner, "call", layer)
    with pytest.raises(KeyError) as caught:
        owner.call()
    ledger.close()
    assert names(caught.value) == [sys._getframe().f_code.co_name, "<lambda>", "raising"]


def test_a_printed_stack_has_no_hotlap_frame():
    def stacks():
        return [
            [frame.name for frame in traceback.extract_stack()],
            [frame.name for frame in traceback.StackSummary.extract(traceback.walk_stack(None))][::-1],
        ]

    plain, ledger = stacks(), Ledger()
    hide_from_stacks(ledger)
    seen = ours(stacks)
    ledger.close()
    assert seen == plain
    assert "ours" in [frame.name for frame in ours(traceback.extract_stack)], "as before, once it is closed"


def test_a_warning_from_c_points_to_the_programs_line():
    code = compile("def ours(): return make(frame(1), ('theirs', UserWarning, 1), {})", "ours.py", "exec")
    names = {"make": from_line(warnings.warn), "frame": sys._getframe}
    exec(code, names)
    with pytest.warns(UserWarning, match="theirs") as seen:
        names["ours"]()
    line = Path(__file__).read_text().splitlines()[seen[0].lineno - 1]
    assert (seen[0].filename, line.strip()) == (__file__, 'names["ours"]()')


def test_warnings_of_hotlaps_own_calls_are_hidden_and_no_other_is_lost(recwarn):
    torch = SimpleNamespace(always=False)
    torch.is_warn_always_enabled, torch.set_warn_always = lambda: torch.always, lambda on: setattr(torch, "always", on)

    def warn(text):
        warnings.warn(text, stacklevel=1)

    warnings.simplefilter("default")
    warn("theirs")
    before = list(warnings.filters)
    with unwarned(torch, "of our"):
        assert torch.always, "torch is not to think that it has said so"
        warn("of our doing")
    warn("theirs")
    assert [str(warning.message) for warning in recwarn.list] == ["theirs"]
    assert (warnings.filters, torch.always) == (before, False)


def test_an_error_from_a_program_handler_during_hotlap_code_is_the_programs():
    def alarmed(number, frame):
        raise TimeoutError("of theirs")

    guard = Guard(strict=False)
    seam = Seam("test", guard)
    seam.subscribe(before=lambda *_: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, alarmed)
    try:
        with pytest.raises(TimeoutError):
            seam.around(lambda: None, None, (), {})
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert guard.failures == []


def test_an_error_of_ours_that_was_being_handled_is_no_context_of_the_programs_error():
    def failing():
        raise KeyError("theirs")

    def our_stand_in(original, *_):
        try:
            raise ValueError("ours")
        except ValueError:
            return original()

    seam = Seam("test", Guard(strict=True))
    seam.stand_in(our_stand_in)
    handled = OSError("handled by the program")
    try:
        raise handled
    except OSError:
        with pytest.raises(KeyError) as caught:
            unseen(seam.around)(failing, None, (), {})
    assert caught.value.__context__ is handled


class Cut(Exception):
    """Of the program."""


class Handlers:
    """A signal handler takes itself out before it raises, so it is not installed when its error is looked at."""

    def __call__(self, *_):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise Cut

    def method(self, number, frame):
        self(number, frame)


def alarmed(number, frame):
    signal.signal(number, signal.SIG_IGN)
    raise Cut


@pytest.mark.parametrize("handler", [alarmed, lambda *_: alarmed(*_), Handlers(), Handlers().method])
@pytest.mark.parametrize("where", ["subscriber", "tape", "guard"])
def test_an_error_from_a_handler_that_is_installed_no_more_is_the_programs(where, handler):
    def our_interruption(*_):
        signal.raise_signal(signal.SIGUSR1)

    guard = Guard(strict=False)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Cut):
            interrupt(where, guard, our_interruption)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert guard.failures == []


throw = ctypes.pythonapi.PyThreadState_SetAsyncExc  # raised after the next call, or at the end of a loop's body


def thrown():
    return ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Cut)


def loop_of_the_program():
    thread, kind = thrown()
    for _ in map(throw, [thread], [kind]):
        pass


def our_throw(*_):
    throw(*thrown())


def our_fetch(*_):
    loop_of_the_program()


@pytest.mark.parametrize("where", ["subscriber", "tape", "guard"])
@pytest.mark.parametrize("our_interruption", [our_throw, our_fetch])
def test_an_error_thrown_into_the_thread_is_the_programs(where, our_interruption):
    guard = Guard(strict=False)
    with pytest.raises(Cut):
        interrupt(where, guard, our_interruption)
    assert guard.failures == []


def interrupt(where, guard, interruption):
    seam = Seam("test", guard)
    if where == "guard":
        guard.run("testing", interruption)
    elif where == "subscriber":
        seam.subscribe(before=interruption)
    else:
        seam.write_to(interruption, 0, 1)
    seam.around(lambda: None, None, (), {})


def test_errors_of_the_program_in_its_own_code_and_errors_of_ours_are_not_from_outside():
    def our_error():
        raise Cut

    for function, kind in ((partial(raising, Cut), Cut), (our_error, Cut), (partial(int, "one"), ValueError)):
        with pytest.raises(kind) as caught:
            ours(function)
        assert not comes_from_outside(caught.value)
