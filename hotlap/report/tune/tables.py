"""The optimisations of a tune as plain rows, for the text-only formats."""

from __future__ import annotations

from hotlap.records.figures import NONE
from hotlap.report.shared.figures import ratio
from hotlap.report.shared.parts import Column, Table
from hotlap.report.tune.axis import Axis, axis_of
from hotlap.report.tune.figures import spelled
from hotlap.report.tune.parts import Interval, Row, TunePage

NARROWEST, WIDEST = 10, 32  # characters of a drawn interval
BESIDE = 79  # terminal columns that the other cells need
NOISE, TOGETHER = "baseline against itself", "all kept together"


def drawn(page: TunePage, room: int) -> Table:
    """List each optimisation by the trial that decided, with its interval drawn in characters if there is room."""
    axis, cells = axis_of(page), min(WIDEST, room - BESIDE)
    shown = cells >= NARROWEST
    lines = (
        *_around(page.noise, NOISE),
        *((row.name, row.shown, row.gate, row.state) for row in page.rows),
        *_around(page.together, TOGETHER),
    )
    return Table(
        title="What was tried",
        columns=(
            Column("optimisation", minimum=12),
            Column("times as fast", figures=True),
            *((Column(f"{ratio(axis.low)}–{ratio(axis.high)}×", minimum=cells),) if shown else ()),
            Column("harmless"),
            Column("result", minimum=12),
        ),
        rows=tuple(
            (
                name,
                spelled(interval),
                *((picture(interval, axis, cells) if interval else "",) if shown else ()),
                gate,
                state,
            )
            for name, interval, gate, state in lines
        ),
        note="with its 95 % interval" + (", on a logarithmic axis; the bar marks 1" if shown else ""),
    )


def spelled_out(page: TunePage) -> Table:
    """List each optimisation with both of its trials and the reason."""
    return Table(
        title="What was tried",
        columns=(
            Column("optimisation"),
            Column("alone", figures=True),
            Column("stacked", figures=True),
            Column("harmless"),
            Column("result"),
            Column("why"),
        ),
        rows=(
            *_alone(page.noise, NOISE),
            *(
                (row.name, spelled(row.alone), spelled(row.stacked), row.gate, row.state, reason(row))
                for row in page.rows
            ),
            *_alone(page.together, TOGETHER),
        ),
        note="times as fast with its 95 % interval; alone: against the baseline; stacked: on top of what was kept",
    )


def _around(interval: Interval | None, name: str) -> tuple[tuple[str, Interval, str, str], ...]:
    """Return the row before or after the optimisations, if it was measured."""
    return ((name, interval, NONE, NONE),) if interval is not None else ()


def _alone(interval: Interval | None, name: str) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (name, spelled(measured), NONE, gate, state, "") for name, measured, gate, state in _around(interval, name)
    )


def reason(row: Row) -> str:
    gate = f"harmless, {row.gate}: {row.gate_why}" if row.gate_why and row.gate != "passed" else ""
    return "; ".join(filter(None, (row.why, gate, *row.notes)))


def picture(interval: Interval, axis: Axis, width: int) -> str:
    """Draw the interval as a line of text, with a bar at 1, where nothing changes."""

    def cell(value: float) -> int:
        return round(axis.at(value) * (width - 1))

    cells = [" "] * width
    cells[cell(1.0)] = "│"
    if interval.low is not None and interval.high is not None:
        for i in range(cell(interval.low), cell(interval.high) + 1):
            cells[i] = "─"
    cells[cell(interval.ratio)] = "■"
    return "".join(cells)
