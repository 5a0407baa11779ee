"""What we write in the program's process does not disturb it."""

from __future__ import annotations

import pytest

from tests.patch.subprocesses import run_python


@pytest.mark.parametrize("handler", ["signal.SIG_DFL", "lambda *_: got.append(1)"])
def test_a_file_larger_than_the_program_allows_does_not_signal_it(handler, tmp_path):
    run_python(
        f"""
import resource, signal
from pathlib import Path
from hotlap.records import private
got = []
signal.signal(signal.SIGXFSZ, {handler})
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
try:
    private.write_text(Path({str(tmp_path / "record")!r}), "too long")
except OSError:
    print("noticed")
assert not got and not signal.sigpending() and not signal.pthread_sigmask(signal.SIG_BLOCK, ())
"""
    )
