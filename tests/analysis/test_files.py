"""Reading real projects: other encodings, Python 2, binaries, generated files, notebooks, circular links."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotlap.analysis.parse import files
from hotlap.errors import ScanRefused
from hotlap.scanning import FindingFilter, scan

LOOP = """\
import torch
for x in torch.utils.data.DataLoader(d):
    loss = m(x)
    loss.backward()
    print(loss.item())
"""


def scanned(folder: Path, *more: str):
    sources, unread = files.discover([str(folder), *more])
    result = scan(sources, FindingFilter(select=("H201",)))
    reasons = {Path(file.path).name: file.reason for file in (*unread, *result.unread)}
    return {Path(finding.path).name for finding in result.findings}, reasons


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("broken.py", b"def f(:\n", "invalid syntax (line 1)"),
        ("old.py", b"print 'hello'\n", "Python 2? Missing parentheses"),
        ("binary.py", b"\x7fELF\x00\x00\x01", "binary"),
        ("latin.py", "x = 'größe'\n".encode("latin-1"), "encoding"),
        ("strange.py", b"# -*- coding: nonsense -*-\nx = 1\n", "encoding"),
        ("generated.py", b"x = [\n" + b"    1,\n" * 800_000 + b"]\n", "assumed to be generated"),
        ("deep.py", b"x = " + b"(" * 3000 + b")" * 3000, "parenthes"),
        ("book.ipynb", b'{"worksheets": []}', "notebook"),
    ],
)
def test_an_unreadable_file_is_reported_once_and_the_rest_is_scanned(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "train.py").write_text(LOOP)
    found, reasons = scanned(tmp_path)
    assert found == {"train.py"}
    assert set(reasons) == {name}
    assert reason in reasons[name]


def test_a_declared_encoding_is_read_and_columns_count_characters(tmp_path):
    text = "# -*- coding: latin-1 -*-\n" + LOOP.replace("print(", "größe = print(")
    (tmp_path / "train.py").write_bytes(text.encode("latin-1"))
    sources, _ = files.discover([str(tmp_path)])
    (finding,) = scan(sources, FindingFilter(select=("H201",))).findings
    assert (finding.line, finding.column) == (6, 19)


def test_circular_links_are_reported_and_not_followed(tmp_path):
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "self.py").symlink_to(tmp_path / "self.py")
    found, reasons = scanned(tmp_path)
    assert found == {"train.py"}
    assert set(reasons) == {"again", "self.py"}


def test_an_empty_tree_has_no_findings(tmp_path):
    assert scanned(tmp_path) == (set(), {})


def test_folders_that_are_not_the_projects_own_are_skipped(tmp_path):
    for folder in (".venv/lib", "build", "node_modules/x", "pkg/__pycache__", ".hidden", "env2", "pkg"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "train.py").write_text(LOOP)
    (tmp_path / "env2" / "pyvenv.cfg").touch()
    sources, _ = files.discover([str(tmp_path)])
    assert [source.path for source in sources] == [str(tmp_path / "pkg" / "train.py")]
    sources, _ = files.discover([str(tmp_path)], exclude=["pkg"])
    assert sources == []
    sources, _ = files.discover([str(tmp_path / "build" / "train.py")])
    assert len(sources) == 1, "what is named is scanned, wherever it is"


def test_a_file_given_twice_is_scanned_once(tmp_path):
    (tmp_path / "train.py").write_text(LOOP)
    sources, _ = files.discover([str(tmp_path), str(tmp_path / "train.py")])
    assert len(sources) == 1


def test_a_path_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(ScanRefused, match="does not exist"):
        files.discover([str(tmp_path / "no")])


def test_a_vanished_file_is_reported(tmp_path):
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    found, reasons = scanned(tmp_path)
    assert not found
    assert "cannot be read" in reasons["gone.py"]


def test_windows_line_endings_count_as_lines(tmp_path):
    (tmp_path / "train.py").write_bytes(LOOP.replace("\n", "\r\n").encode())
    sources, _ = files.discover([str(tmp_path)])
    (finding,) = scan(sources, FindingFilter(select=("H201",))).findings
    assert finding.line == 5
