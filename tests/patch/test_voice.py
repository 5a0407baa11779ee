"""A line of ours on stderr neither ends the program nor holds it up, whoever reads it."""

from __future__ import annotations

import pytest

from tests.patch.subprocesses import run_python

PIPE = """
import os, signal
from hotlap.patch import voice
reading, writing = os.pipe()
kept = os.dup(2)
os.dup2(writing, 2)
os.close(writing)
voice.speak_to(voice.ears())
"""


@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN", "lambda *_: got.append(1)"])
@pytest.mark.parametrize("noticed", [True, False])
def test_a_line_that_nobody_can_read_does_not_end_the_program(handler, noticed):
    """Whether the reader is gone before we look, or between the look and the write."""
    run_python(
        PIPE
        + f"""
got, SIG_DFL, SIG_IGN = [], signal.SIG_DFL, signal.SIG_IGN
signal.signal(signal.SIGPIPE, {handler})
if not {noticed}:
    voice._is_read = lambda: True
os.close(reading)
voice.say("one")
assert not got and not signal.sigpending() and not signal.pthread_sigmask(signal.SIG_BLOCK, ())
os.dup2(kept, 2)
"""
    )


def test_a_line_for_a_pipe_that_is_full_is_dropped():
    run_python(
        PIPE
        + """
os.set_blocking(2, False)
while True:
    try:
        os.write(2, b"x" * 4096)
    except BlockingIOError:
        break
os.set_blocking(2, True)
voice.say("one")
os.dup2(kept, 2)
read = b""
while chunk := os.read(reading, 100_000):
    read += chunk
assert set(read) == {ord("x")}
"""
    )


def test_a_long_line_is_written_whole():
    run_python(
        PIPE
        + """
voice.say("y" * 10_000)
os.dup2(kept, 2)
read = b""
while chunk := os.read(reading, 100_000):
    read += chunk
assert read == b"hotlap: " + b"y" * 10_000 + b"\\n"
"""
    )


@pytest.mark.parametrize(("before", "between"), [("step 5", "\n"), ("\rstep 5", "\n"), ("step 5\n", ""), ("", "")])
def test_a_line_does_not_continue_one_of_the_programs_in_a_file(before, between, tmp_path):
    log = tmp_path / "log"
    run_python(
        f"""
import os
from hotlap.patch import voice
kept = os.dup(2)
os.dup2(os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT), 2)
voice.speak_to(voice.ears())
os.write(2, {before!r}.encode())
voice.say("one")
os.dup2(kept, 2)
"""
    )
    assert log.read_bytes().decode() == f"{before}{between}hotlap: one\n"


def test_a_line_begins_at_the_left_of_a_terminal_and_leaves_no_empty_line():
    """As many blanks as fit beside the cursor at the left; beside anything else, they wrap."""
    run_python(
        """
import fcntl, os, pty, struct, termios
from hotlap.patch import voice
ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 20, 0, 0))
kept = os.dup(2)
os.dup2(theirs, 2)
voice.speak_to(voice.ears())
os.write(2, b"step 5")
voice.say("one")
os.dup2(kept, 2)
shown = b""
while not shown.endswith(b"\\n"):  # a terminal hands over what has come so far
    shown += os.read(ours, 100)
assert shown == b"step 5" + b" " * 19 + b"\\r" + b"hotlap: one\\r\\n"
"""
    )


@pytest.mark.parametrize(("stream", "between"), [("sys.stdout", ""), ("sys.stderr", "\n")])
def test_a_line_leaves_an_empty_line_only_where_the_bar_is_drawn_on_our_stream(stream, between, tmp_path):
    """A bar on a stdout that is a pipe or another file does not stand in the way of a line on stderr."""
    log = tmp_path / "log"
    run_python(
        f"""
import os, sys
from tqdm import tqdm
from hotlap.patch import voice
os.dup2(os.open({str(tmp_path / "out")!r}, os.O_WRONLY | os.O_CREAT), 1)
kept = os.dup(2)
os.dup2(os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT), 2)
voice.speak_to(voice.ears())
bar = tqdm(total=3, file={stream})
os.truncate({str(log)!r}, 0)
os.lseek(2, 0, 0)
voice.say("one")
os.dup2(kept, 2)
bar.disable = True
"""
    )
    assert log.read_bytes().decode() == f"{between}hotlap: one\n"
