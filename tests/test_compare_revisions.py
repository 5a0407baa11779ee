"""hotlap compare checks each git revision out into a folder of its own, which it removes afterwards."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hotlap.errors import NotComparable
from hotlap.workflows.compare import by_turns, worktrees
from hotlap.workflows.compare.by_turns import Means, compare_revisions
from tests.comparisons import Scripted, git, made_repository, options
from tests.observations import observation


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A repository whose src/ is the working folder."""
    root = made_repository(tmp_path)
    monkeypatch.chdir(root / "src")
    return root


class TestRevisions:
    def test_each_revision_has_a_folder_that_is_removed_afterwards(self, repository, tmp_path):
        with worktrees.checked_out(("HEAD~1", "main"), tmp_path / "at") as (base, new):
            assert (base.folder / "train.py").read_text() == "one"
            assert (new.folder / "train.py").read_text() == "two"
            assert base.commit == git(repository, "rev-parse", "HEAD~1")
            assert base.folder.name == "src"
        assert not base.root.exists()
        assert git(repository, "worktree", "list").count("\n") == 0
        assert (repository / "src" / "train.py").read_text() == "three, not committed"

    def test_folders_are_removed_when_something_fails(self, repository, tmp_path):
        with pytest.raises(KeyboardInterrupt), worktrees.checked_out(("main", "main"), tmp_path / "at"):
            raise KeyboardInterrupt
        assert git(repository, "worktree", "list").count("\n") == 0
        assert list((tmp_path / "at").iterdir()) == []

    def test_untracked_data_is_linked_where_the_command_looks_for_it(self, repository, tmp_path):
        with worktrees.checked_out(("HEAD~1", "main"), tmp_path / "at", [Path("data")]) as made:
            assert all((worktree.folder / "data" / "rows.csv").read_text() == "1,2" for worktree in made)
        assert (repository / "src" / "data" / "rows.csv").exists()

    @pytest.mark.parametrize(("link", "error"), [("nothing", "no such file"), ("../src", "below the current folder")])
    def test_rejects_links_that_cannot_be_made(self, repository, tmp_path, link, error):
        with pytest.raises(NotComparable, match=error), worktrees.checked_out(("main",), tmp_path / "at", [Path(link)]):
            pass

    def test_its_modules_come_before_an_editable_install_of_the_checkout(self, repository, tmp_path):
        given = {"PYTHONPATH": os.pathsep.join([str(repository / "src"), "/elsewhere"])}
        with worktrees.checked_out(("main",), tmp_path / "at") as (made,):
            path = made.variables(repository, given)["PYTHONPATH"].split(os.pathsep)
        assert path == [str(made.root / "src"), "/elsewhere", str(made.root), str(made.root / "src")]

    def test_rejects_an_unknown_revision(self, repository, tmp_path):
        with (
            pytest.raises(NotComparable, match="nonsense is not a revision"),
            worktrees.checked_out(("nonsense",), tmp_path),
        ):
            pass

    @pytest.mark.parametrize("word", ["--help", "-q"])
    def test_a_revision_is_never_passed_to_git_as_an_option(self, repository, word):
        assert not worktrees.is_revision(word)

    def test_rejects_a_folder_outside_a_repository(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
        with pytest.raises(NotComparable, match="is not in a git repository"):
            worktrees.top()

    def test_rejects_a_current_folder_that_one_revision_lacks(self, repository, tmp_path, monkeypatch):
        (repository / "late").mkdir()
        monkeypatch.chdir(repository / "late")
        with (
            pytest.raises(NotComparable, match="has no folder late"),
            worktrees.checked_out(("main",), tmp_path / "at"),
        ):
            pass

    def test_each_arm_runs_in_the_folder_of_its_revision(self, repository, tmp_path, monkeypatch):
        seen: list[tuple[str, str]] = []

        def look(arm):
            with by_turns.standing_in(arm):
                seen.append((arm.side.name, Path("train.py").read_text()))
                assert str(Path.cwd().parent) in os.environ["PYTHONPATH"]
            return observation(), "kept"

        script = Scripted(0.3)
        runner = lambda arm, seen: script.runners[arm.side.name == "main"]  # noqa: E731
        monkeypatch.setattr(by_turns, "local_means", lambda run, asked, say: Means(look=look, runner=runner))
        command = (sys.executable, "train.py")
        made = compare_revisions(("HEAD~1", "main"), command, (), options(tmp_path), lambda words: None)
        assert seen == [("HEAD~1", "one"), ("main", "two")]
        assert (made.kind, made.result) == ("revisions", "regression")
        assert made.base.revision == git(repository, "rev-parse", "HEAD~1")
        assert not (tmp_path / "kept" / "worktrees").exists()
        assert Path.cwd() == repository / "src"
