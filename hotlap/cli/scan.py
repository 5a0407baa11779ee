"""hotlap scan PATHS…: find what slows training down in the source, and repair it."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import click

import hotlap
from hotlap import catalog, scanning, store
from hotlap.analysis.parse import files
from hotlap.catalog import patterns
from hotlap.cli import completion
from hotlap.cli.say import say
from hotlap.errors import RunFolderUnwritable, UnknownName
from hotlap.records.scan_finding import Scan, Unread
from hotlap.records.visible import everywhere, visible, visible_lines
from hotlap.report.scan import findings as page
from hotlap.report.scan.sarif import sarif
from hotlap.scanning import FileRepair, FindingFilter, baseline, cache
from hotlap.scanning.settings import settings

BASELINE = "hotlap-baseline.json"
NEWEST = ""  # the RUN of a bare --with-profile


@click.command()
@click.argument("paths", nargs=-1)
@click.option("--fix", is_flag=True, help="Repair what can be repaired safely.")
@click.option(
    "--unsafe", is_flag=True, help="With --fix or --diff: also repairs that may change rounding, order or output."
)
@click.option("--diff", is_flag=True, help="Show what --fix would change, without changing it.")
@click.option("--format", "style", type=click.Choice(page.FORMATS), default="text", show_default=True)
@click.option(
    "--select", multiple=True, metavar="CODES", help="Report only these rules: codes, names, or H2 for all of H2xx."
)
@click.option("--ignore", multiple=True, metavar="CODES", help="Skip these rules.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Skip these files and folders.")
@click.option("--pedantic", is_flag=True, help="Also report what hotlap is not sure of.")
@click.option(
    "--preview",
    is_flag=True,
    help="Also use rules whose findings in public programs were often wrong, or that had none.",
)
@click.option(
    "--baseline", "known", type=click.Path(path_type=Path), metavar="FILE", help="Hide the findings listed in FILE."
)
@click.option(
    "--write-baseline", is_flag=True, help=f"Write all current findings to --baseline.  [default: {BASELINE}]"
)
@click.option("--statistics", is_flag=True, help="Only count findings by rule.")
@click.option(
    "--with-profile",
    "profile",
    is_flag=False,
    flag_value=NEWEST,
    metavar="[RUN]",
    shell_complete=completion.runs,
    help="Rank by what a run measured, and say what did not run; the newest run by default.",
)
@click.option("--no-cache", is_flag=True, help="Scan even if nothing changed.")
def scan(paths: tuple[str, ...], **options: object) -> int:
    """Find what slows training down in the source, and repair it.

    Reads PATHS (files or folders; by default the current folder) without importing or running them. Exit code 0:
    nothing found, even if there was no file, 1: something found, 2: an error, such as a named file that cannot be
    parsed, or no file that can.
    """
    _refuse_contradictions(options)
    request = _ScanRequest(paths, options)
    if not request.sources and not request.unread:
        say(f"warning: no Python file or notebook in {', '.join(request.paths)}; give another folder: hotlap scan src/")
    result = request.repaired() if request.on("fix") or request.on("diff") else request.scanned()
    for unread in result.unread:
        click.echo(visible(f"{unread.path}: {unread.reason}; not scanned"), err=True)
    if result.unread and not result.read:
        click.echo(_rendered(result, request), nl=False)
        return 2
    if request.on("diff"):
        return 1 if request.changed else 0
    if request.on("write_baseline"):
        return _write_baseline(request, result)
    left = request.new(result)
    if request.run is not None:
        from hotlap.cli.measured import measured

        left = measured(left, request.run)
    click.echo(_rendered(left, request), nl=False)
    not_scanned = {Path(file.path) for file in result.unread}
    return 1 if left.findings else 2 if not_scanned & set(map(Path, request.paths)) else 0


def _refuse_contradictions(options: dict[str, object]) -> None:
    """Refuse options that would otherwise be ignored silently."""
    changes = options["fix"] or options["diff"]
    if options["unsafe"] and not changes:
        raise click.UsageError("--unsafe needs --fix or --diff: hotlap scan --diff --unsafe")
    if options["write_baseline"] and changes:
        raise click.UsageError("--write-baseline excludes --fix and --diff; repair first, then write the baseline.")
    if options["profile"] is not None and (changes or options["write_baseline"]):
        raise click.UsageError("--with-profile excludes --fix, --diff and --write-baseline: a repair moves lines.")
    if options["statistics"] and options["style"] not in ("text", "json"):
        raise click.UsageError(f"--statistics needs --format text or json, not {options['style']}.")


class _ScanRequest:
    """What to scan and how, from the command line and the project's settings."""

    def __init__(self, paths: tuple[str, ...], options: dict[str, object]) -> None:
        self.run: store.Run | None = None
        if isinstance(options["profile"], str):
            from hotlap.cli.measured import run_to_join  # reads every record, which a plain scan need not wait for

            self.run, paths = run_to_join(options["profile"], paths)
        self.paths, self.options = paths or (".",), options
        first = Path(self.paths[0])
        self.project = settings(first if first.is_dir() else first.parent)
        if self.project.unread:
            say(self.project.unread)
        self.wanted = FindingFilter(
            self._codes("select") or self._checked(self.project.select),
            (*self._codes("ignore"), *self._checked(self.project.ignore)),
            self.on("pedantic") or self.project.pedantic,
            self.on("preview") or self.project.preview,
        )
        excluded = (*_texts(options["exclude"]), *self.project.exclude)
        self.sources, self.unread = files.discover(self.paths, excluded)
        self.context = files.surroundings(self.paths, self.sources, excluded)
        self.changed: list[FileRepair] = []

    def on(self, name: str) -> bool:
        return bool(self.options[name])

    @property
    def baseline(self) -> Path | None:
        given = self.options["known"]
        if isinstance(given, Path):
            return given
        return Path(self.project.baseline) if self.project.baseline else None

    def _codes(self, name: str) -> tuple[str, ...]:
        given = [code.strip() for text in _texts(self.options[name]) for code in text.split(",")]
        return self._checked(tuple(code for code in given if code))

    def _checked(self, codes: tuple[str, ...]) -> tuple[str, ...]:
        for code in codes:
            if not FindingFilter(select=(code,), preview=True).rules():
                raise UnknownName(f"no rule is called {code}; list them: hotlap list")
        return codes

    def scanned(self) -> Scan:
        folder = None if self.on("no_cache") else _cache_folder()
        name = cache.key(self.sources, self.context, self.wanted) if folder is not None else ""
        result = cache.load(folder, name) if folder is not None else None
        if result is None:
            result = scanning.scan(self.sources, self.wanted, self.context)
            if folder is not None and self.sources:
                cache.save(folder, name, result)
        return _with(result, self.unread)

    def repaired(self) -> Scan:
        self.changed, result = scanning.repair(self.sources, self.wanted, self.on("unsafe"), self.context)
        for file in self.changed:
            if self.on("diff"):
                click.echo(_readable(file.diff()), nl=False)
            else:
                scanning.write(file)
        count = len(self.changed)
        files = f"{count} file{'' if count == 1 else 's'}"
        said = f"{files} would change." if self.on("diff") else f"Repaired {files}."
        if not count and not self.on("unsafe"):
            said = "Nothing to repair safely; --unsafe includes what may round, order or print otherwise."
        click.echo(said, err=True)
        return _with(result, self.unread)

    def new(self, result: Scan) -> Scan:
        return page.without(result, baseline.unknown(self.baseline, result.findings)) if self.baseline else result


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, tuple) else ()


def _with(result: Scan, unread: list[Unread]) -> Scan:
    return replace(result, unread=(*unread, *result.unread))


def _write_baseline(request: _ScanRequest, result: Scan) -> int:
    path = request.baseline or Path(BASELINE)
    count = baseline.write(path, result.findings)
    line = f"Wrote {count} finding{'' if count == 1 else 's'} to {path}; use it: hotlap scan … --baseline {path}"
    click.echo(visible(line))
    return 0


def _rendered(result: Scan, request: _ScanRequest) -> str:
    style = request.options["style"]
    if request.on("statistics"):
        return page.statistics(result, as_json=style == "json")
    if style == "sarif":
        titles = {rule.code: (rule.name, rule.title, catalog.card(rule.name)) for rule in patterns.rules().values()}
        return sarif(result, titles, hotlap.__version__)
    if style == "text":
        read = sys.stdout.isatty() or "COLUMNS" in os.environ  # a pipe gets each finding on one line, to search in
        return page.text(everywhere(result), shutil.get_terminal_size().columns if read else None)
    draw = {"json": page.as_json, "github": page.github, "markdown": page.markdown}[str(style)]
    return draw(result if style == "json" else everywhere(result))


def _cache_folder() -> Path | None:
    """Return the cache folder, or None where it cannot be written: a scan never fails because of its cache."""
    try:
        return store.prepare(store.home(), "scan")
    except RunFolderUnwritable:
        return None


def _readable(diff: str) -> str:
    """Escape control characters on a terminal only: a pipe gets the raw diff, so that patch can apply it."""
    return visible_lines(diff) if sys.stdout.isatty() else diff
