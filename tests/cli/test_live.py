"""The live line shares the terminal with nothing but itself."""

from __future__ import annotations

import io
import sys

from hotlap.cli.live import LiveLine
from hotlap.records.progress import TIMING, Progress
from hotlap.workflows.profile import CEILING, OBSERVING

MEASURING = Progress(state=TIMING, rank=0, fraction=0.4, steps=7, batches=7, backwards=7, optimizers=1, loaders=1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_nothing_is_drawn_while_the_program_writes_to_the_terminal(monkeypatch):
    terminal = on_terminal(monkeypatch)
    with LiveLine(enabled=True) as line:
        line.update(OBSERVING, MEASURING, 3.0)
    assert terminal.getvalue() == ""


def test_a_run_whose_output_is_hidden_shows_how_far_it_is(monkeypatch):
    terminal = on_terminal(monkeypatch)
    with LiveLine(enabled=True, every=0.0) as line:
        line.update(CEILING, None, 2.0)
        line.update(CEILING, MEASURING, 3.0)
    assert "second run on one cached batch: waiting for torch, 2 s" in terminal.getvalue()
    assert "measuring, step 7,  40%" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[2K"), "it is cleared in the end"


def test_without_a_terminal_nothing_is_drawn(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with LiveLine(enabled=True, every=0.0) as line:
        line.update(CEILING, None, 2.0)
    assert stream.getvalue() == ""
