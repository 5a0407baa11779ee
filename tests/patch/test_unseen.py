"""hotlap's functions run between two of the program's, but its errors, warnings and stacks do not show them."""

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
    """hotlap's functions are recognised by their folder; here, functions of this file starting with `our` count too."""
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
