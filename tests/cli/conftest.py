from __future__ import annotations

import pytest


@pytest.fixture
def typed(monkeypatch, tmp_path, command_line):
    """Types `hotlap …` in an empty project and returns the exit code, stdout and stderr."""
    monkeypatch.setenv("HOTLAP_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    return command_line
