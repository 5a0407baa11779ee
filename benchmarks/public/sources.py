"""The code and the data of a program, brought and made where they are missing. Neither is ever committed."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from program import Program


def code(program: Program, work: Path, sources: Path | None) -> Path:
    """Make a fresh folder with the program's repository at its commit: an earlier arm may have written into it."""
    repository = _repository(program, work, sources)
    root = work / "code" / program.name
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        index = {**os.environ, "GIT_INDEX_FILE": f"{folder}/index"}
        git = ["git", f"--git-dir={repository}", f"--work-tree={root}"]
        subprocess.run([*git, "read-tree", program.commit], check=True, env=index, capture_output=True)
        # Its largest files may be missing in a copy; what the program needs of them it will say
        subprocess.run([*git, "checkout-index", "-a", "-q"], env=index, capture_output=True)
    return root


def _repository(program: Program, work: Path, sources: Path | None) -> Path:
    """Return a git directory that has the commit."""
    name = program.repository.replace("/", "+")
    if sources is not None:
        there = sources / name
        return next(path for path in (there / "repo" / ".git", there / "repo", there) if path.is_dir())
    repository = work / "repositories" / name
    if not repository.is_dir():
        repository.mkdir(parents=True)
        url = f"https://github.com/{program.repository}"
        subprocess.run(["git", "init", "-q", "--bare", str(repository)], check=True)
        subprocess.run(["git", "-C", str(repository), "remote", "add", "origin", url], check=True)
    known = subprocess.run(["git", "-C", str(repository), "cat-file", "-e", program.commit], capture_output=True)
    if known.returncode != 0:
        subprocess.run(
            ["git", "-C", str(repository), "fetch", "-q", "--depth", "1", "origin", program.commit], check=True
        )
    return repository


def data(program: Program, work: Path, root: Path) -> Path:
    """Make a fresh copy of what the program reads, where it looks for it: some programs write into it."""
    into = root / program.place if program.place is not None else work / "data-of" / program.name
    if program.place is None:
        shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True, exist_ok=True)
    if program.data is not None:
        shutil.copytree(_made(program.data, work), into, symlinks=True, dirs_exist_ok=True)
    return into


def _made(recipe: str, work: Path) -> Path:
    """Make data by the module of that name in data/; what follows a colon is its variant."""
    name, _, variant = recipe.partition(":")
    made = work / "data" / recipe.replace(":", "-")
    if not made.is_dir():
        unfinished = made.with_suffix(".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        importlib.import_module(f"data.{name}").make(unfinished, *([variant] if variant else []))
        unfinished.rename(made)
    return made
