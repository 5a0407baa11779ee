"""Files that cannot be scanned are reported once on stderr, and the rest is scanned."""

from __future__ import annotations

import json

import pytest

from tests.scan.command import PROGRAM, TWO, scan


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("broken.py", b"def f(:\n", "broken.py: invalid syntax (line 1); not scanned"),
        ("old.py", b"print 'hello'\n", "old.py: Python 2? Missing parentheses"),
        ("older.py", b"try:\n    x = 1\nexcept ValueError, e:\n    pass\n", "older.py: Python 2?"),
        ("binary.py", b"\x7fELF\x00\x00\x01", "binary.py: is binary"),
        ("latin.py", "x = 'größe'\n".encode("latin-1"), "latin.py: is binary or not in the encoding"),
        ("made.py", b"x = [\n" + b"    1,\n" * 800_000 + b"]\n", "made.py: 5.6 MB; files above 2 MB"),
        ("book.ipynb", b'{"nbformat": 3, "worksheets": []}', "book.ipynb: is not a notebook of Jupyter 4"),
        ("book.ipynb", b"[]", "book.ipynb: is not a notebook"),
    ],
)
def test_a_file_that_cannot_be_scanned_is_reported_once(project, name, content, reason):
    (project / name).write_bytes(content)
    code, text = scan(*TWO)
    assert code == 1
    assert text.count(name) == 1
    assert reason in text
    assert "2 findings in" in text
    (project / "train.py").unlink()
    assert scan(*TWO)[0] == 2


def test_a_file_that_was_named_and_cannot_be_parsed_is_an_error(project):
    (project / "broken.py").write_text("def f(:\n")
    code, text = scan("broken.py")
    assert code == 2
    assert text.endswith("Nothing was scanned. 1 file could not be read.\n")
    assert scan("broken.py", "train.py")[0] == 1


def test_circular_links_are_reported_and_not_followed(project):
    (project / "here").symlink_to(project, target_is_directory=True)
    (project / "self.py").symlink_to(project / "self.py")
    code, text = scan(*TWO)
    assert code == 1
    assert "here: a link to a folder that contains it; not followed" in text
    assert "self.py: cannot be read" in text
    assert text.count("train.py:9:") == 1


def test_nothing_found_is_never_said_of_files_that_could_not_be_read(project):
    (project / "train.py").write_text("def f(:\n")
    code, text = scan()
    assert code == 2
    assert text.endswith("Nothing was scanned. 1 file could not be read.\n")
    (project / "whole.py").write_text("x = 1\n")
    code, text = scan()
    assert code == 0
    assert text.endswith("Nothing found in 1 file. 1 file could not be read.\n")


def test_an_empty_tree_has_no_findings(project):
    (project / "train.py").unlink()
    code, text = scan()
    assert code == 0
    assert text.endswith("give another folder: hotlap scan src/\nNothing found in 0 files.\n")


def notebook(*cells: str) -> str:
    kinds = [{"cell_type": "markdown", "source": ["# A model"]}]
    kinds += [{"cell_type": "code", "source": cell.splitlines(keepends=True), "outputs": []} for cell in cells]
    return json.dumps({"nbformat": 4, "cells": kinds})


def test_cells_of_a_notebook_are_one_program_and_findings_name_their_cell(project):
    imports, _, rest = PROGRAM.partition("\n")
    body = rest.strip()
    (project / "train.py").unlink()
    (project / "book.ipynb").write_text(
        notebook("!pip install torch\n%matplotlib inline\nfiles = !ls\n" + imports, "%%bash\nls -l", body, "model?")
    )
    code, text = scan(*TWO)
    assert code == 1
    assert "book.ipynb:cell 3:7:18 `loss.item()` waits" in text
    assert "book.ipynb:cell 3:3 training loop" in text
    assert "fixable" not in text
    before = (project / "book.ipynb").read_text()
    assert scan("--fix", *TWO)[0] == 1
    assert (project / "book.ipynb").read_text() == before


def test_a_cell_that_is_not_python_hides_no_other(project):
    (project / "train.py").unlink()
    (project / "book.ipynb").write_text(notebook("an idea: use = more layers", PROGRAM))
    assert "book.ipynb:cell 2:9:18 `loss.item()` waits" in scan(*TWO)[1]


def test_a_bug_in_a_rule_is_reported_and_hides_no_other_rule(project, monkeypatch):
    from dataclasses import replace

    from hotlap.catalog import patterns

    def broken(code):
        raise ZeroDivisionError("oh")
        yield

    rules = dict(patterns.rules())
    rules["H201"] = replace(rules["H201"], find=broken)
    monkeypatch.setattr(patterns, "rules", lambda: rules)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    code, text = scan("--no-cache", *TWO)
    assert code == 1
    assert "train.py: H201: a bug in hotlap, please report it: ZeroDivisionError: oh" in text
    assert "H101" in text
