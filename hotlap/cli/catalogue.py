"""hotlap list and hotlap explain CODE: what hotlap can apply, and what it finds in source."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

import click
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from hotlap import catalog
from hotlap.catalog import patterns
from hotlap.cli.completion import explained
from hotlap.diagnose.cards import cards
from hotlap.errors import UnknownName, UnknownOptimization
from hotlap.records.plan import Risk

RUN, SCAN = "run", "scan"
SECTIONS = {  # the first letter of a code, for optimisations and for rules
    (RUN, "D"): "Data: what hotlap run and tune can apply",
    (RUN, "C"): "Computation: what hotlap run and tune can apply",
    (RUN, "H"): "The loop around it: what hotlap run and tune can apply",
    (SCAN, "D"): "Data: what hotlap scan finds",
    (SCAN, "C"): "Computation: what hotlap scan finds",
    (SCAN, "H"): "The loop around it: what hotlap scan finds",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    code: str
    name: str
    applied_by: str  # "run" or "scan"
    title: str
    risk: str | None = None  # of an optimisation
    values: str | None = None  # what --with NAME=VALUE takes
    needs_gpu: bool = False
    automatic: bool = True  # else only by --with
    found_in_source: bool = False  # by hotlap scan
    fixable: bool = False  # by hotlap scan --fix
    preview: bool = False  # a rule that is used with --preview only
    precision: float | None = None  # of a rule, measured on code that nobody had seen
    precision_if_arguable_is_false: float | None = None
    judged: str = ""  # of a rule: how many findings were judged and how, or "not measured"

    @property
    def section(self) -> str:
        return SECTIONS[self.applied_by, self.code[0]]

    @property
    def order(self) -> int:
        return list(SECTIONS).index((self.applied_by, self.code[0]))

    @property
    def notes(self) -> str:
        named = {
            "GPU": self.needs_gpu,
            f"={self.values}": self.values is not None,
            "only by --with": not self.automatic,
            "--fix": self.fixable and self.applied_by == SCAN,
            "--preview": self.preview,
            f"precision {self._precision}": self.applied_by == SCAN,
        }
        return ", ".join(note for note, holds in named.items() if holds)

    @property
    def _precision(self) -> str:
        counted = patterns.precision().get(self.code)
        if self.precision is None or counted is None:
            return "not measured"
        return f"{100 * self.precision:.0f} % of {counted.true + counted.false}"


@click.command("list")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option(
    "--risk",
    type=click.Choice([str(risk) for risk in Risk]),
    help="Only optimisations of this risk or a lower one.",
)
@click.option("--run", "applied_by", flag_value=RUN, help="Only what hotlap run and tune can apply.")
@click.option("--scan", "applied_by", flag_value=SCAN, help="Only what hotlap scan finds, with its measured precision.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_entries(words: tuple[str, ...], risk: str | None, applied_by: str | None, as_json: bool) -> None:
    """List what hotlap can apply and what it finds in source.

    WORD keeps those that have it in their name, their title or at the start of their code: loader, H2, gpu.
    """
    kept = [
        entry
        for entry in sorted((*_optimisations(), *_rules(applied_by)), key=lambda entry: (entry.order, entry.code))
        if applied_by in (None, entry.applied_by) and _is_within(entry, risk) and _is_meant(entry, words)
    ]
    if not kept:
        asked = " and ".join([*words, *filter(None, (risk, applied_by))])
        raise UnknownName(f"nothing in the list is {asked}; see all of it: hotlap list")
    if as_json:
        click.echo(json.dumps([asdict(entry) for entry in kept], indent=2, ensure_ascii=False))
    else:
        _draw(kept)


def _optimisations() -> list[Listed]:
    rules = {rule.name for rule in patterns.rules().values()}
    return [
        Listed(
            code=entry.code,
            name=name,
            applied_by=RUN,
            title=entry.title,
            risk=str(entry.risk),
            values=None if entry.values is None else str(entry.values),
            needs_gpu=entry.device == "cuda",
            automatic=entry.automatic,
            found_in_source=name in rules,
            fixable=name in rules and patterns.fix_of(name) is not None,
        )
        for name, entry in catalog.entries().items()
    ]


def _rules(applied_by: str | None) -> list[Listed]:
    """Return the rules; those that hotlap run applies as well only if rules alone are asked for."""
    return [
        Listed(
            code=rule.code,
            name=rule.name,
            applied_by=SCAN,
            title=rule.title,
            found_in_source=True,
            fixable=patterns.fix_of(rule.name) is not None,
            preview=rule.preview,
            **_judged(rule.code),
        )
        for rule in patterns.rules().values()
        if applied_by == SCAN or rule.name not in catalog.entries()
    ]


def _judged(code: str) -> dict[str, Any]:
    """Return how good a rule was on code that nobody had seen, as recorded in benchmarks/results/scan-quality."""
    known = patterns.precision().get(code)
    if known is None:
        return {"judged": "not measured"}
    return {
        "precision": known.share,
        "precision_if_arguable_is_false": known.strict_share,
        "judged": f"{known.true} true, {known.false} false, {known.arguable} arguable",
    }


def _is_within(entry: Listed, risk: str | None) -> bool:
    return risk is None or (entry.risk is not None and Risk(entry.risk).rank <= Risk(risk).rank)


def _is_meant(entry: Listed, words: Sequence[str]) -> bool:
    texts = (entry.name, entry.title.lower(), entry.notes.lower())
    return all(
        entry.code.lower().startswith(word.lower()) or any(word.lower() in text for text in texts) for word in words
    )


def _draw(entries: Sequence[Listed]) -> None:
    console = Console(highlight=False)
    sections = list(dict.fromkeys(entry.section for entry in entries))
    names = max(len(entry.name) for entry in entries)
    for section in sections:
        console.print(Text(section, "bold"))
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, min_width=names)
        table.add_column(no_wrap=True)
        table.add_column()
        for entry in entries:
            if entry.section == section:
                title = Text(entry.title).append(f" ({entry.notes})" if entry.notes else "", "dim")
                table.add_row(entry.code, entry.name, entry.risk or "", title)
        console.print(table)
        console.print()
    console.print(Text(f"{len(entries)} in all; more about one: hotlap explain {entries[0].name}", "dim"))


@click.command()
@click.argument("code", shell_complete=explained)
def explain(code: str) -> None:
    """Explain an optimisation, a rule of hotlap scan, or a finding of a profile.

    CODE is a code or a name, as in hotlap list and in the tables of a profile and a tune.
    """
    Console(highlight=False).print(Markdown(_explanation(code)))


def _explanation(code: str) -> str:
    if (rule := patterns.name_of(code)) is not None:
        return catalog.card(rule)
    if (finding := cards().get(code.lower())) is not None:
        return finding
    try:
        return catalog.card(catalog.name_of(code))
    except UnknownOptimization as error:
        near = get_close_matches(code.lower(), [*cards(), *(rule.name for rule in patterns.rules().values())], 1)
        if near and "did you mean" not in str(error):
            raise UnknownOptimization(f"nothing is called {code}; did you mean {near[0]}?") from error
        raise
