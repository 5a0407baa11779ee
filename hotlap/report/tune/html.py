"""The report of a tune as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.records.figures import number
from hotlap.report.shared import svg_bars
from hotlap.report.shared.figures import ratio, times
from hotlap.report.shared.html import bullets, document, facts, paragraph, section, subject, table, text, titled
from hotlap.report.shared.parts import Bars
from hotlap.report.shared.svg_bars import phase_list
from hotlap.report.tune import svg_curves, svg_forest
from hotlap.report.tune.axis import Axis, axis_of
from hotlap.report.tune.figures import ends
from hotlap.report.tune.parts import FASTER, KEPT, Command, Figure, Interval, Losses, Row, TunePage
from hotlap.report.tune.tables import NOISE, TOGETHER

KEY = '<svg height="12" aria-hidden="true" focusable="false">{}</svg>'
MEASURED = '<line class="interval {0}" x1="0" x2="26" y1="6" y2="6"/><rect class="point {0}" x="9" y="2" {1}/>'
FOREST_KEYS = (
    MEASURED.format("strong", 'width="8" height="8"'),
    MEASURED.format("faint", 'width="7" height="7"'),
    '<rect class="noise" width="26" height="12"/>',
    '<line class="least" x1="13" x2="13" y1="0" y2="12"/>',
)
CURVE_KEYS = (
    '<rect class="noise" width="26" height="12"/>',
    '<g class="curves"><path class="curve-0" d="M0 6H26"/></g>',
    '<g class="curves"><path class="curve-1" d="M0 6H26"/></g>',
)


def draw(page: TunePage) -> str:
    body = "\n".join(piece for piece in _sections(page) if piece)
    return document(f"{page.sentence} · hotlap", "tune report", page.run, body)


def _sections(page: TunePage) -> Iterator[str]:
    yield subject(page.footer)
    yield f"<h1>{text(page.sentence)}</h1>"
    yield from (paragraph(detail, "lead") for detail in page.details)
    yield figures(page.figures, proven=page.state == FASTER)
    yield section("What to type next", commands(page.next_steps))
    yield section("Step time, before and after", _bars(page.bars), _beside(page))
    yield section("What was tried", _forest(page), titled("Not tried", table(page.not_tried, caption=False)))
    yield section(
        "What was compared",
        table(page.compared, caption=False) or paragraph("Nothing is kept, so there was no final comparison."),
        titled("Not covered", bullets(page.not_covered)),
        titled("Files", bullets(page.files)),
    )
    yield section("Loss", _losses(page.losses))
    yield section("Where the time went", *_time(page))
    full = page.length
    yield section("At full length", bullets(full.facts), table(full.table, caption=False) if full.table else "")
    yield section("Reproduce it", commands(page.commands))
    yield section("Measured on", facts(page.footer), titled(page.broken.title, table(page.broken, caption=False)))


def figures(shown: tuple[Figure, ...], proven: bool) -> str:
    inside = "".join(
        f'<div><dt>{text(figure.label)}</dt><dd><span class="value">{text(figure.value)}</span>'
        f'<span class="note">{text(figure.note)}</span></dd></div>'
        for figure in shown
    )
    return f'<dl class="figures{" proven" if proven else ""}">{inside}</dl>'


def commands(shown: tuple[Command, ...]) -> str:
    inside = "".join(
        f'<div><dt>{text(command.what)}</dt><dd><code class="line">{text(command.line)}</code></dd></div>'
        for command in shown
    )
    return f'<dl class="commands">{inside}</dl>'


def _bars(bars: Bars) -> str:
    longest = svg_bars.longest(bars)
    drawn = ""
    if bars.before_ms is not None:
        drawn += _figure("before", f"{number(bars.before_ms)} ms", svg_bars.before(bars, longest))
    if bars.after_ms is not None:
        known = bars.after_low is not None and bars.after_high is not None
        between = f" [{number(bars.after_low)}–{number(bars.after_high)}]" if known else ""
        drawn += _figure("after", f"{number(bars.after_ms)} ms{between}", svg_bars.after(bars, longest))
    return drawn + paragraph(bars.note, "note")


def _beside(page: TunePage) -> str:
    return f'<div class="side"><div>{phase_list(page.bars.segments)}</div><div>{table(page.before_after)}</div></div>'


def _figure(name: str, length: str, picture: str) -> str:
    return f"<figure><figcaption>{name}<b>{length}</b></figcaption>{picture}</figure>"


def _forest(page: TunePage) -> str:
    if not page.rows and page.noise is None:
        return paragraph("No optimisation has been tried.")
    axis = axis_of(page)
    heads = (
        '<th scope="col" role="columnheader" class="name">optimisation</th>'
        f'<th scope="col" role="columnheader" class="plot">{svg_forest.scale(axis)}</th>'
        '<th scope="col" role="columnheader" class="speed n">times as fast</th>'
        '<th scope="col" role="columnheader" class="gate">harmless</th>'
        '<th scope="col" role="columnheader" class="why">result</th>'
    )
    rows = [_edge(page, axis, page.noise, NOISE, "sets the noise band")]
    told: set[str] = set()  # a rule that several rows share is spelled out once
    for row in page.rows:
        rows.append(_row(page, axis, row, "" if row.rule in told else row.rule))
        told.add(row.rule)
    rows.append(_edge(page, axis, page.together, TOGETHER, "the final trial, against the baseline"))
    # Roles are explicit because some browsers drop them from a table laid out as a grid, as on a phone.
    return (
        f'{_forest_keys(page)}<table class="tried" role="table"><caption class="unseen">What was tried</caption>'
        f'<thead role="rowgroup"><tr role="row">{heads}</tr></thead>\n'
        f'<tbody role="rowgroup">{"".join(rows)}</tbody></table>'
    )


def _forest_keys(page: TunePage) -> str:
    noise = f"baseline against itself, {ends(page.noise)}" if page.noise and ends(page.noise) else "no noise band"
    names = (
        "measured, with its 95 % interval; coloured where it is kept",
        "the trial alone, where there is another on top of others",
        noise,
        f"smallest speed-up that counts, {ratio(page.minimum)}×",
    )
    return _keys(FOREST_KEYS, names)


def _keys(keys: tuple[str, ...], names: tuple[str, ...]) -> str:
    inside = "".join(
        f"<li>{KEY.format(key)}<span>{text(name)}</span></li>" for key, name in zip(keys, names, strict=True)
    )
    return f'<ul class="keys" aria-label="How to read it">{inside}</ul>'


def _edge(page: TunePage, axis: Axis, interval: Interval | None, name: str, why: str) -> str:
    """Return the row of the baseline or of everything together, neither of which is an optimisation."""
    if interval is None:
        return ""
    plot = svg_forest.row(page, axis, interval, None, strong=name == TOGETHER)
    return _cells(f"<b>{text(name)}</b>", plot, _speed(interval, None), "", f"<small>{text(why)}</small>", "edge")


def _row(page: TunePage, axis: Axis, row: Row, rule: str) -> str:
    name = f"<b>{text(row.name)}</b><small>{text(' · '.join(filter(None, (row.code, row.risk))))}</small>"
    plot = svg_forest.row(page, axis, row.alone, row.stacked, strong=row.state == KEPT)
    gate = f"{text(row.gate)}{_small(rule)}{_small(row.gate_why if row.gate != 'passed' else '')}"
    style = "state state-kept" if row.state == KEPT else "state"
    why = f'<span class="{style}">{text(row.state)}</span>{_small(row.why)}{"".join(map(_small, row.notes))}'
    return _cells(name, plot, _speed(row.alone, row.stacked), gate, why)


def _cells(name: str, plot: str, speed: str, gate: str, why: str, style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return (
        f'<tr role="row"{named}><th scope="row" role="rowheader" class="name">{name}</th>'
        f'<td role="cell" class="plot">{plot}</td><td role="cell" class="speed n">{speed}</td>'
        f'<td role="cell" class="gate">{gate}</td><td role="cell" class="why">{why}</td></tr>\n'
    )


def _small(words: str) -> str:
    return f"<small>{text(words)}</small>" if words else ""


def _speed(alone: Interval | None, stacked: Interval | None) -> str:
    decided = stacked or alone
    if decided is None:
        return "–"
    speed = f"<b>{times(decided.ratio)}</b><small>{ends(decided) or 'no interval'}</small>"
    return speed + (f"<small>alone {times(alone.ratio)}</small>" if alone and stacked else "")


def _losses(losses: Losses) -> str:
    picture = svg_curves.curves(losses)
    names = ("noise band of the baseline", *(curve.name for curve in losses.curves))
    axis = " (logarithmic axis)" if svg_curves.is_logarithmic(losses) else ""
    shown = _keys(CURVE_KEYS[: len(names)], names) + f"<figure>{picture}</figure>" if picture else ""
    tables = "".join(f"<div>{table(rows)}</div>" for rows in losses.tables)
    note = paragraph(f"Mean loss over steps{axis}.", "note") if picture else ""
    return f'{shown}{note}{bullets(losses.facts)}<div class="side">{tables}</div>'


def _time(page: TunePage) -> Iterator[str]:
    if page.time is None:
        yield paragraph(page.no_time)
        return
    yield paragraph(page.time.sentence)
    yield paragraph(" · ".join(page.time.figures), "note")
    yield from (table(shown) for shown in page.time.tables)
    yield titled("Not known", bullets(page.time.unknowns))
