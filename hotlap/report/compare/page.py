"""The report of a comparison, in a terminal and as Markdown for a pull request."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from hotlap.records.comparison import Comparison, Result, Side
from hotlap.records.figures import NONE, number
from hotlap.records.visible import everywhere
from hotlap.report.shared.figures import clean, duration, megabytes
from hotlap.report.shared.markdown import plain, table_lines
from hotlap.report.shared.parts import Column, Table
from hotlap.report.shared.terminal import draw_table, in_its_encoding, pairs, show
from hotlap.report.tune.arms import BASE, NEW, interval, measured, most, rate, step_ms
from hotlap.report.tune.facts import broken_rows
from hotlap.report.tune.figures import spelled

STYLES = {
    Result.REGRESSION: "bold red",
    Result.INCONCLUSIVE: "bold yellow",
    Result.NO_REGRESSION: "bold green",
}


def sentence(comparison: Comparison) -> str:
    return f"{comparison.result.capitalize()}: {clean(comparison.why)}."


def sides(comparison: Comparison) -> Table:
    rows = [_row(comparison, side, arm) for side, arm in ((comparison.base, BASE), (comparison.new, NEW))]
    return Table(
        title="Measured",
        columns=(
            Column("", minimum=8),
            Column("processes", figures=True),
            Column("step, ms", figures=True),
            Column("samples/s", figures=True),
            Column("batch", figures=True, extra=True),
            Column("peak memory", figures=True, extra=True),
        ),
        rows=tuple(rows),
    )


def _row(comparison: Comparison, side: Side, arm: str) -> tuple[str, ...]:
    ran = measured(comparison.trial.of(arm))
    return (
        clean(side.name),
        str(len(ran)),
        number(step_ms(ran)),
        number(rate(ran)),
        number(side.samples_per_step) if side.samples_per_step else NONE,
        megabytes(most(sample.host_mb for sample in ran)),
    )


def facts(comparison: Comparison) -> Iterator[tuple[str, str]]:
    yield "speed", f"{spelled(interval(comparison.speed))}, new over base"
    for name, side in (("base", comparison.base), ("new", comparison.new)):
        revision = f" at {side.revision[:12]}" if side.revision else ""
        yield name, clean(f"{shlex.join(side.command)}{revision}")
    if comparison.machine:
        yield "machine", clean(comparison.machine)
    yield "took", duration(comparison.seconds)


def terminal(comparison: Comparison, console: Console) -> None:
    in_its_encoding(console, lambda: _draw(everywhere(comparison), console))


def _draw(comparison: Comparison, console: Console) -> None:
    show(console, Text(sentence(comparison), STYLES.get(comparison.result, "bold")))
    for table in (sides(comparison), broken_rows((comparison.trial,))):
        if table.rows:
            console.print()
            draw_table(table, console)
    console.print()
    console.print(pairs(tuple(facts(comparison))))


def markdown(comparison: Comparison) -> str:
    comparison = everywhere(comparison)
    lines = [f"### {plain(sentence(comparison))}", ""]
    for table in (sides(comparison), broken_rows((comparison.trial,))):
        lines += table_lines(table) if table.rows else ()
    lines += [f"- {name}: {plain(text)}" for name, text in facts(comparison)]
    return "\n".join(lines).rstrip() + "\n"
