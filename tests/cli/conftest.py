from __future__ import annotations

import sys

import pytest

import hotlap.cli


@pytest.fixture
def typed(monkeypatch, tmp_path, capsys):
    """Types `hotlap …` in an empty project and returns the exit code, stdout and stderr."""
    monkeypatch.setenv("HOTLAP_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)

    def type_it(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hotlap", *words])
        with pytest.raises(SystemExit) as ended:
            hotlap.cli.main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return type_it
