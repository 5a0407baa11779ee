"""Our own errors never stop the user's training."""

from __future__ import annotations

import io
import sys

import pytest

from hotlap.patch.guard import FILE, Guard


def fail():
    raise ValueError("our bug")


def test_what_works_is_returned():
    assert Guard(strict=False).run("adding", lambda a, b: a + b, 1, 2) == 3


def test_a_failure_is_said_once_and_every_one_is_kept(tmp_path, capsys):
    guard = Guard(tmp_path, strict=False)
    assert guard.run("measuring", fail) is None
    assert guard.run("tracing", fail) is None
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "hotlap: measuring failed (ValueError: our bug) and was switched off; your training goes on; "
        f"details in {tmp_path / FILE}"
    ]
    assert guard.failures == ["measuring: ValueError: our bug", "tracing: ValueError: our bug"]
    kept = (tmp_path / FILE).read_text()
    assert "measuring" in kept
    assert "tracing" in kept
    assert kept.count("Traceback") == 2


def test_a_folder_that_is_gone_and_a_closed_stderr_do_not_matter(tmp_path, monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    guard = Guard(tmp_path / "gone", strict=False)
    assert guard.run("measuring", fail) is None
    monkeypatch.setattr(sys, "stderr", None)
    assert Guard(strict=False).run("measuring", fail) is None


def test_strict_raises_and_keeps_the_error_itself():
    with pytest.raises(ValueError, match="our bug"):
        Guard(strict=True).run("measuring", fail)


@pytest.mark.parametrize(("value", "strict"), [("1", True), ("0", False), (None, False)])
def test_strictness_comes_from_the_environment(value, strict, monkeypatch):
    monkeypatch.delenv("HOTLAP_STRICT", raising=False)
    if value is not None:
        monkeypatch.setenv("HOTLAP_STRICT", value)
    assert Guard().strict is strict


def test_a_stop_request_is_no_failure():
    """What ends the program on purpose is a BaseException and must pass."""

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guard(strict=False).run("stepping", stop)
