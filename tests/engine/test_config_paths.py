"""Text in a configuration becomes a path where the schema asks for one; anything else is rejected."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from hotlap.engine.config import ConfigInvalid, build, read


@dataclass(frozen=True)
class Folders:
    data: Path = Path("data")
    kept: Path | None = Path("kept")
    others: tuple[Path, ...] = ()
    title: str | None = "run"


def written(folder, text):
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_text_becomes_a_path(tmp_path):
    found = read(written(tmp_path, 'data = "a/b"\nkept = "c"\nothers = ["d"]'), Folders)
    assert found == Folders(Path("a/b"), Path("c"), (Path("d"),))
    assert build(Folders, {"data": Path("a")}, "here").data == Path("a")


def test_none_clears_an_optional_path_or_text(tmp_path):
    found = read(written(tmp_path, 'kept = "none"\ntitle = "none"'), Folders)
    assert (found.kept, found.title) == (None, None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("data = 3", "data = 3 is a whole number; it must be a path"),
        ("kept = true", 'kept = true is true or false; it must be a path or "none"'),
        ("others = [1]", r"others\[0\] = 1 is a whole number; it must be a path"),
        ("others = 1", "it must be a list, each a path"),
    ],
)
def test_rejects_values_that_are_not_paths(line, message, tmp_path):
    with pytest.raises(ConfigInvalid, match=message):
        read(written(tmp_path, line), Folders)
