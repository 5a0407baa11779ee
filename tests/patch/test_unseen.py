"""Our functions stand between two of the program's, and the program's errors, warnings and stacks do not show it."""

from __future__ import annotations

import sys
import traceback
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotlap.patch import hidden_frames as room
from hotlap.patch import stacks
from hotlap.patch.guard import Guard
from hotlap.patch.hidden_frames import from_line, unseen
from hotlap.patch.ledger import Ledger
from hotlap.patch.seams import Seam
from hotlap.patch.silenced_warnings import unwarned
from hotlap.patch.stacks import hide_from_stacks


@pytest.fixture(autouse=True)
def here_is_ours(monkeypatch):
    """Functions of ours are told by their folder; those of this file that begin with `our` count as well."""
    known = room.is_ours
    for module in (room, stacks):
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


def test_an_error_that_passes_has_no_frame_of_ours():
    with pytest.raises(KeyError) as caught:
        ours(ours, raising, KeyError)
    assert names(caught.value) == [sys._getframe().f_code.co_name, "raising"]


def test_an_error_of_ours_has_none_either():
    with pytest.raises(TypeError) as caught:
        ours(None)
    assert names(caught.value) == [sys._getframe().f_code.co_name]


def test_errors_that_an_error_came_from_are_clean_too():
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
def test_what_is_no_error_passes_as_well(kind):
    with pytest.raises(kind) as caught:
        ours(raising, kind)
    assert names(caught.value) == [sys._getframe().f_code.co_name, "raising"]


def test_whatever_the_ledger_puts_in_place_leaves_no_frame():
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


def test_a_stack_that_is_printed_has_no_frame_of_ours():
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


def test_a_warning_from_c_is_blamed_on_the_line_of_the_program():
    code = compile("def ours(): return make(frame(1), ('theirs', UserWarning, 1), {})", "ours.py", "exec")
    names = {"make": from_line(warnings.warn), "frame": sys._getframe}
    exec(code, names)
    with pytest.warns(UserWarning, match="theirs") as seen:
        names["ours"]()
    line = Path(__file__).read_text().splitlines()[seen[0].lineno - 1]
    assert (seen[0].filename, line.strip()) == (__file__, 'names["ours"]()')


def test_a_warning_of_our_own_call_is_not_shown_and_none_is_forgotten(recwarn):
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
    assert [str(one.message) for one in recwarn.list] == ["theirs"]
    assert (warnings.filters, torch.always) == (before, False)


def test_what_a_handler_of_the_program_raises_while_our_code_runs_is_the_programs():
    import signal

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
