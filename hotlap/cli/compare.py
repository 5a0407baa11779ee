"""hotlap compare BASE NEW: did it get slower? The exit code tells CI."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hotlap import store
from hotlap.cli.live import StatusLine
from hotlap.cli.overwriting import JSON, MARKDOWN, spare_others
from hotlap.cli.packages import need_scipy
from hotlap.cli.say import note
from hotlap.cli.values import seconds, share
from hotlap.errors import NotComparable, RunFolderUnwritable, RunNotFound
from hotlap.records.codec import to_json
from hotlap.records.comparison import Comparison, Kind, Result, Side
from hotlap.records.visible import visible
from hotlap.report.compare import page as compare_page
from hotlap.workflows.compare import by_turns, speeds, worktrees

EXIT_CODES = {Result.REGRESSION: 1, Result.INCONCLUSIVE: 2, Result.NO_REGRESSION: 0}


class WrongUsage(click.UsageError):
    exit_code = 64  # not 2, which means inconclusive here


class Verb(click.Command):
    def make_context(self, *arguments: Any, **named: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **named)
        except click.UsageError as error:
            raise WrongUsage(error.message, error.ctx) from error


@click.command(cls=Verb, context_settings={"show_default": True})
@click.argument("base")
@click.argument("new")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option(
    "--max-slowdown", callback=share, default="3%", metavar="SHARE", help="How much longer than BASE NEW may take."
)
@click.option(
    "--budget", callback=seconds, default="10m", metavar="TIME", help="Time for the whole comparison: 90s, 10m, 1h."
)
@click.option(
    "--steps", type=click.IntRange(20), metavar="N", help="Measure N steps in each process.  [default: chosen]"
)
@click.option(
    "--link",
    "links",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="With revisions: link data that git does not track into both; may be repeated.",
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write JSON here.")
@click.option(
    "--markdown", "markdown_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write Markdown here."
)
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Save runs here.  [default: the project's state folder]"
)
@click.option("--quiet", is_flag=True, help="Print only the result.")
def compare(
    base: str,
    new: str,
    command: tuple[str, ...],
    max_slowdown: float,
    budget: float,
    steps: int | None,
    links: tuple[Path, ...],
    json_file: Path | None,
    markdown_file: Path | None,
    run_dir: Path | None,
    quiet: bool,
) -> int:
    """Tell whether NEW is slower than BASE: exit 1 if that is proven, 2 if it is inconclusive, else 0.

    BASE and NEW are two saved runs, two commands, or two git revisions on which COMMAND is run; commands are run
    alternately, for some steps each.
    """
    spare_others(json_file, *JSON)
    spare_others(markdown_file, *MARKDOWN)
    options = speeds.Options(max_slowdown=max_slowdown, budget_seconds=budget, steps=steps, run_dir=run_dir)
    need_scipy("hotlap compare")
    with _Line(quiet) as say:
        comparison = _compared(base, new, command, links, options, say)
    _write(json_file, lambda: to_json(comparison))
    _write(markdown_file, lambda: compare_page.markdown(comparison))
    if quiet:
        click.echo(compare_page.sentence(comparison))
    else:
        compare_page.terminal(comparison, Console(highlight=False))
        note(Console(stderr=True, highlight=False), f"Saved in {(run_dir or store.home()) / 'runs' / comparison.run}")
    return EXIT_CODES[comparison.result]


def _compared(
    base: str, new: str, command: tuple[str, ...], links: tuple[Path, ...], options: speeds.Options, say: _Line
) -> Comparison:
    if command:
        return by_turns.compare_revisions((base, new), command, links, options, say)
    if links:
        raise NotComparable("--link needs two revisions and a command: hotlap compare main HEAD --link PATH -- COMMAND")
    runs = [_run(word, options.run_dir) for word in (base, new)]
    if runs[0] is not None and runs[1] is not None:
        return speeds.compare_runs(runs[0], runs[1], options)
    if runs[0] is not None or runs[1] is not None:
        raise NotComparable(f"{base if runs[0] else new} is a run, but the other is not; give two runs or two commands")
    arms = [_arm(word) for word in (base, new)]
    return by_turns.compare_arms((arms[0], arms[1]), Kind.COMMANDS, options, say)


def _run(word: str, run_dir: Path | None) -> store.Run | None:
    if " " in word.strip() or not word.strip():
        return None
    try:
        return store.find(word, run_dir)
    except RunNotFound:
        return None


def _arm(word: str) -> by_turns.Arm:
    try:
        words = tuple(shlex.split(word))
    except ValueError as error:
        raise NotComparable(f"{word!r} cannot be read as a command ({error}); check its quotes") from error
    if not words:
        raise NotComparable("the command is empty; give two runs, two commands, or two revisions and -- COMMAND")
    if len(words) == 1 and shutil.which(words[0]) is None and not Path(words[0]).exists():
        raise NotComparable(_what_is(word))
    return by_turns.Arm(side=Side(name=word, command=words), folder=Path.cwd(), variables={})


def _what_is(word: str) -> str:
    if worktrees.is_revision(word):
        return (
            f"{word} is a revision: give the command to run on it, as in: hotlap compare main HEAD -- python train.py"
        )
    return f"{word} is not a run, a command or a revision; list the runs: hotlap runs"


class _Line(StatusLine):
    """Shows on stderr what is running: one live line on a terminal, one line for each step in a CI log."""

    def __init__(self, quiet: bool) -> None:
        super().__init__(enabled=not quiet, every=0.0)
        self._quiet = quiet

    def __call__(self, words: str) -> None:
        if self.is_live:
            self.draw(f"hotlap: {words}")
        elif not self._quiet:
            print(f"hotlap: {visible(words)}", file=sys.stderr, flush=True)


def _write(path: Path | None, make: Callable[[], str]) -> None:
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make(), encoding="utf-8")
    except OSError as error:
        raise RunFolderUnwritable(f"cannot write {path} ({error.strerror}); choose another file") from error
