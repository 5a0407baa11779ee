"""print-thread writes every line in order from another thread, and leaves print alone where that is not safe."""

from __future__ import annotations

import io
import subprocess
import sys
import threading

import pytest
import torch
from harness import HOTLAP, environment
from warm import warmed

import hotlap
from hotlap.catalog.print_thread.detect import detect
from tests.catalog.loops import left_as_found
from tests.observations import observation

NAME = "print-thread"


class Terminal(io.StringIO):
    line_buffering = True

    def __init__(self):
        super().__init__()
        self.writers = []

    def write(self, text):
        self.writers.append(threading.current_thread().name)
        return super().write(text)


class Broken(Terminal):
    def write(self, text):
        super().write("")
        raise BrokenPipeError("nobody reads")


def step():
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    torch.optim.SGD([weight], lr=0.1).step()


@pytest.fixture
def on(monkeypatch):
    """Redirects stdout; tests call it themselves, because pytest sets its own stdout before they run."""

    def put(stdout):
        monkeypatch.setattr(sys, "stdout", stdout)
        return stdout

    return put


def test_lines_are_written_by_another_thread_in_order(on):
    terminal = on(Terminal())
    with left_as_found(), hotlap.enable(None, with_=[NAME]) as enabled:
        step()
        for number in range(300):
            print("line", number, sep=":", end=";\n")
        assert terminal.getvalue().count("\n") < 300, "the loop waits for no write"
        sys.stdout.write("direct\n")
        print("after")
    expected = [f"line:{number};" for number in range(300)]
    assert terminal.getvalue().splitlines() == [*expected, "direct", "after"]
    assert sys.stdout is terminal
    (outcome,) = enabled.outcomes
    assert (outcome.status, outcome.why) == ("applied", "printed lines are written every 50 ms")


def test_lines_appear_without_another_print_or_flush(on):
    terminal = on(Terminal())
    with left_as_found(), hotlap.enable(None, with_=[NAME]):
        step()
        print("soon")
        for _ in range(200):
            if terminal.getvalue():
                break
            threading.Event().wait(0.05)
        assert terminal.getvalue() == "soon\n"
        assert threading.current_thread().name not in terminal.writers


def test_a_stream_that_buffers_lines_itself_is_left_alone(on):
    stdout = on(io.StringIO())
    with left_as_found(), hotlap.enable(None, with_=[NAME]) as enabled:
        step()
        print("kept by Python")
        assert stdout.getvalue() == "kept by Python\n"
        print("elsewhere", file=(other := io.StringIO()), flush=True)
        assert other.getvalue() == "elsewhere\n"
    assert enabled.outcomes[0].status == "no effect"


def test_nothing_changes_before_the_first_step(on):
    terminal = on(Terminal())
    with left_as_found(), hotlap.enable(None, with_=[NAME]):
        print("at once")
        assert terminal.writers[0] == threading.current_thread().name
        assert sys.stdout is terminal


def test_the_next_print_raises_for_a_broken_pipe(on):
    on(Broken())
    with left_as_found(), hotlap.enable(None, with_=[NAME]):
        step()
        print("lost")
        threading.Event().wait(0.3)
        with pytest.raises(BrokenPipeError):
            print("met")


def test_print_itself_rejects_wrong_arguments(on):
    on(Terminal())
    with left_as_found(), hotlap.enable(None, with_=[NAME]):
        step()
        with pytest.raises(TypeError):
            print("text", ending="")


def test_an_unencodable_line_fails_where_it_is_printed_and_loses_no_other(on):
    written = io.BytesIO()
    on(io.TextIOWrapper(written, encoding="ascii", line_buffering=True))
    with left_as_found(), hotlap.enable(None, with_=[NAME]):
        step()
        print("before")
        with pytest.raises(UnicodeEncodeError):
            print("naïve")
        print("after")
    assert written.getvalue() == b"before\nafter\n"


PROGRAM = """
import os, sys, torch
weight = torch.nn.Parameter(torch.ones(1)); weight.grad = torch.ones(1)
optimizer = torch.optim.SGD([weight], lr=0.1)
for number in range(40):
    optimizer.step()
    print(number, weight.item(), flush=True)
if os.fork() == 0:
    print("in the child", flush=True)
    os._exit(0)
os.wait()
print("last", flush=True)
if sys.argv[1:] == ["replaced"]:
    os.execvp(sys.executable, [sys.executable, "-c", "raise SystemExit(4)"])
raise SystemExit(3) if sys.argv[1:] else RuntimeError("as the program ends")
"""


@pytest.mark.parametrize("arguments", [[], ["quietly"], ["replaced"]])
def test_output_is_the_same_however_the_program_ends(arguments, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    command = warmed([sys.executable, str(script), *arguments])
    whole = [*HOTLAP, "run", "--run-dir", str(tmp_path / "kept"), "--with", NAME, *command]
    alone, ours = (
        subprocess.run(command_line, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=600)
        for command_line in (command, whole)
    )
    assert ours.stdout == alone.stdout
    assert ours.returncode == alone.returncode != 0
    assert "applied: print-thread (printed lines are written every 50 ms)" in ours.stderr
    assert ("RuntimeError: as the program ends" in ours.stderr) == (not arguments)


def test_promises_no_gain_and_is_in_no_automatic_plan():
    assert detect(observation()) is None
    assert not hotlap.catalog.entries()[NAME].automatic
