"""--fix replaces a file completely or not at all, and preserves everything that it does not fix."""

from __future__ import annotations

import os

import pytest

from hotlap.analysis.parse import files
from hotlap.scanning import FindingFilter, repairs
from tests.scan.command import PROGRAM, TWO, scan


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def left_behind(project) -> list[str]:
    return [path.name for path in project.iterdir() if path.name.startswith(".train")]


def test_encoding_line_endings_and_byte_order_mark_are_preserved(project):
    text = "# -*- coding: latin-1 -*-\n# größe\n" + PROGRAM
    (project / "train.py").write_bytes(text.replace("\n", "\r\n").encode("latin-1"))
    (project / "marked.py").write_bytes(b"\xef\xbb\xbf" + PROGRAM.encode())
    assert scan("--fix", *TWO)[0] == 0
    data = (project / "train.py").read_bytes()
    assert "größe".encode("latin-1") in data
    assert b"empty_cache" not in data
    assert data.count(b"\r\n") == data.count(b"\n") > 5
    marked = (project / "marked.py").read_bytes()
    assert marked.startswith(b"\xef\xbb\xbfdef train")
    assert b"empty_cache" not in marked


@pytest.mark.parametrize("ending", ["", "\n", "\n\n\n"])
def test_the_end_of_the_file_is_preserved(project, ending):
    (project / "train.py").write_text(PROGRAM.rstrip() + ending)
    assert scan("--fix", *TWO)[0] == 0
    assert (project / "train.py").read_text().endswith("return total" + ending)


def test_permissions_and_links_are_preserved(project):
    (project / "real").mkdir()
    (project / "train.py").rename(project / "real" / "code.py")
    (project / "real" / "code.py").chmod(0o755)
    (project / "train.py").symlink_to("real/code.py")
    assert scan("--fix", "train.py", *TWO)[0] == 0
    assert (project / "train.py").is_symlink()
    assert "empty_cache" not in (project / "real" / "code.py").read_text()
    assert (project / "real" / "code.py").stat().st_mode & 0o777 == 0o755


def test_a_write_that_fails_leaves_the_old_file(project, answering):
    answering(os, fsync=OSError(28, "No space left on device"))
    code, text = scan("--fix", *TWO)
    assert code == 2
    assert "No space left on device; nothing in it was changed" in text
    assert (project / "train.py").read_text() == PROGRAM
    assert left_behind(project) == []


def test_an_interrupted_write_leaves_the_old_file(project, answering):
    sources, _ = files.discover(["train.py"])
    (repaired,), _ = repairs.repair(sources, FindingFilter(select=("H101",)), unsafe=False)
    answering(os, fsync=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        repairs.write(repaired)
    assert (project / "train.py").read_text() == PROGRAM
    assert left_behind(project) == []


def test_a_file_changed_in_the_meantime_is_left_alone(project, monkeypatch):
    real = repairs.write

    def slow(repaired):
        (project / "train.py").write_text("# mine\n" + PROGRAM)
        real(repaired)

    monkeypatch.setattr("hotlap.scanning.write", slow)
    code, text = scan("--fix", *TWO)
    assert code == 2
    assert "train.py was changed while it was being scanned" in text
    assert (project / "train.py").read_text() == "# mine\n" + PROGRAM


def test_a_read_only_file_is_left_alone(project, monkeypatch):
    monkeypatch.setattr(repairs.os, "access", lambda path, mode: mode != os.W_OK)
    code, text = scan("--fix", *TWO)
    assert code == 2
    assert "read-only" in text
    assert (project / "train.py").read_text() == PROGRAM


def test_files_that_cannot_be_scanned_are_not_touched(project):
    strange = {"old.py": b"print 'x'\n", "binary.py": b"\0\1\2", "latin.py": "x = 'größe'\n".encode("latin-1")}
    for name, data in strange.items():
        (project / name).write_bytes(data)
    assert scan("--fix", *TWO)[0] == 0
    for name, data in strange.items():
        assert (project / name).read_bytes() == data
    assert "empty_cache" not in (project / "train.py").read_text()
