"""What a comparison shows, in a terminal and for a pull request."""

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
    Result.REGRESSION.value: "bold red",
    Result.INCONCLUSIVE.value: "bold yellow",
    Result.NO_REGRESSION.value: "bold green",
}


def sentence(made: Comparison) -> str:
    return f"{made.result.capitalize()}: {clean(made.why)}."


def sides(made: Comparison) -> Table:
    rows = [_row(made, side, arm) for side, arm in ((made.base, BASE), (made.new, NEW))]
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


def _row(made: Comparison, side: Side, arm: str) -> tuple[str, ...]:
    ran = measured(made.trial.of(arm))
    return (
        clean(side.name),
        str(len(ran)),
        number(step_ms(ran)),
        number(rate(ran)),
        number(side.samples_per_step) if side.samples_per_step else NONE,
        megabytes(most(sample.host_mb for sample in ran)),
    )


def facts(made: Comparison) -> Iterator[tuple[str, str]]:
    yield "speed", f"{spelled(interval(made.speed))}, new over base"
    for name, side in (("base", made.base), ("new", made.new)):
        revision = f" at {side.revision[:12]}" if side.revision else ""
        yield name, clean(f"{shlex.join(side.command)}{revision}")
    if made.machine:
        yield "machine", clean(made.machine)
    yield "took", duration(made.seconds)


def terminal(made: Comparison, console: Console) -> None:
    in_its_encoding(console, lambda: _draw(everywhere(made), console))


def _draw(made: Comparison, console: Console) -> None:
    show(console, Text(sentence(made), STYLES.get(made.result, "bold")))
    for table in (sides(made), broken_rows((made.trial,))):
        if table.rows:
            console.print()
            draw_table(table, console)
    console.print()
    console.print(pairs(tuple(facts(made))))


def markdown(made: Comparison) -> str:
    made = everywhere(made)
    lines = [f"### {plain(sentence(made))}", ""]
    for table in (sides(made), broken_rows((made.trial,))):
        lines += table_lines(table) if table.rows else ()
    lines += [f"- {name}: {plain(text)}" for name, text in facts(made)]
    return "\n".join(lines).rstrip() + "\n"
