"""Errors of hotlap never stop the user's training."""

from __future__ import annotations

import io
import sys

import pytest

from hotlap.patch.guard import FILE, Guard


def fail():
    raise ValueError("our bug")


def test_returns_the_result_of_a_call_that_works():
    assert Guard(strict=False).run("adding", lambda a, b: a + b, 1, 2) == 3


def test_a_failure_is_reported_once_and_all_are_recorded(tmp_path, capsys):
    guard = Guard(tmp_path, strict=False)
    assert guard.run("measuring", fail) is None
    assert guard.run("tracing", fail) is None
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        "hotlap: measuring failed (ValueError: our bug) and was switched off; your training continues; "
        f"details in {tmp_path / FILE}"
    ]
    assert guard.failures == ["measuring: ValueError: our bug", "tracing: ValueError: our bug"]
    report = (tmp_path / FILE).read_text()
    assert "measuring" in report
    assert "tracing" in report
    assert report.count("Traceback") == 2


def test_survives_a_missing_folder_and_a_closed_stderr(tmp_path, monkeypatch):
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    guard = Guard(tmp_path / "gone", strict=False)
    assert guard.run("measuring", fail) is None
    monkeypatch.setattr(sys, "stderr", None)
    assert Guard(strict=False).run("measuring", fail) is None


def test_strict_mode_raises_and_keeps_the_original_error():
    with pytest.raises(ValueError, match="our bug"):
        Guard(strict=True).run("measuring", fail)


@pytest.mark.parametrize(("value", "strict"), [("1", True), ("0", False), (None, False)])
def test_strict_mode_is_set_by_the_environment(value, strict, monkeypatch):
    monkeypatch.delenv("HOTLAP_STRICT", raising=False)
    if value is not None:
        monkeypatch.setenv("HOTLAP_STRICT", value)
    assert Guard().strict is strict


def test_a_stop_request_is_not_a_failure():
    """A BaseException that ends the program on purpose must pass."""

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guard(strict=False).run("stepping", stop)
