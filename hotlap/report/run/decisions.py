"""The report of what a run decided while it trained: each trial with its blocks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from hotlap.records.codec import to_json
from hotlap.records.decisions import BlockTrial, Decisions
from hotlap.records.plan import Outcome
from hotlap.records.visible import everywhere, visible
from hotlap.report.shared.html import document, paragraph, section, table, text
from hotlap.report.shared.parts import Column, Table
from hotlap.report.shared.terminal import draw_table, in_its_encoding, show

FIGURES = ("times as fast", "blocks", "cost")
COLUMNS = ("tried", "on top of", "times as fast", "blocks", "cost", "result")
EXTRA = ("on top of", "blocks", "cost")


def headline(decisions: Decisions) -> str:
    if decisions.at_once:
        return f"On from the first step: {', '.join(decisions.on) or 'nothing, since none of it applies'}."
    if not decisions.tried or decisions.after is None:
        on = f" On for some of these steps: {', '.join(decisions.ever_on)}." if decisions.ever_on else ""
        return f"The training ended after {decisions.steps} steps, before anything was decided.{on}"
    names = f"On: {', '.join(decisions.on)}." if decisions.on else "Nothing is on: the program runs unchanged."
    change = f"{_ms(decisions.after * decisions.ratio)} → {_ms(decisions.after)} a step"
    began = " It started with what an earlier run decided." if decisions.remembered else ""
    return f"{decisions.ratio:.2f} times as fast, {change}. {names}{began}"


def _ms(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def about(decisions: Decisions) -> str:
    """Return what was run, and where."""
    command = shlex.join([Path(word).name if number == 0 else word for number, word in enumerate(decisions.command)])
    return " · ".join(filter(None, (command, decisions.machine)))


def account(decisions: Decisions) -> str:
    if decisions.at_once:
        return "Nothing was measured; leave out --at-once to measure it."
    unfinished = "" if decisions.is_over else " It ended before everything was tried."
    return (
        f"{decisions.steps} steps in {decisions.seconds:.1f} s; the trials cost {decisions.spent:.2f} s of that."
        f"{unfinished}"
    )


def rows(decisions: Decisions) -> list[tuple[str, ...]]:
    return [
        (
            ", ".join(tried.names),
            ", ".join(tried.on_top_of) or "nothing",
            _times(tried),
            f"{len(tried.without)} + {len(tried.with_)}",
            _ms(tried.cost),
            "kept" if tried.kept else tried.why if tried.ratio is None else "switched off",
        )
        for tried in decisions.tried
    ]


def _times(tried: BlockTrial) -> str:
    if tried.ratio is None or tried.low is None or tried.high is None:
        return "–"
    if tried.low == 0:
        return f"{tried.ratio:.2f}"
    return f"{tried.ratio:.2f} [{tried.low:.2f}, {tried.high:.2f}]"


def terminal(decisions: Decisions, outcomes: Sequence[Outcome], console: Console) -> None:
    in_its_encoding(console, lambda: _draw(everywhere(decisions), everywhere(outcomes), console))


def _draw(decisions: Decisions, outcomes: Sequence[Outcome], console: Console) -> None:
    show(console, Text(headline(decisions), "bold green" if decisions.on else "bold"))
    for line in filter(None, (account(decisions), about(decisions))):
        show(console, Text(line, "dim"))
    for shown in (tried(decisions), outcome_table(outcomes)):
        if shown.rows:
            console.print()
            draw_table(shown, console)


def tried(decisions: Decisions) -> Table:
    return Table(
        title="What was tried",
        columns=tuple(Column(name, figures=name in FIGURES, extra=name in EXTRA) for name in COLUMNS),
        rows=tuple(rows(decisions)),
        note="Times as fast: steps with it compared with steps without, in blocks of one training; [ ]: 95 % interval. "
        "Blocks: how many without and with it. Cost: how much longer the steps of the trial took than without it.",
    )


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    return Table(
        title="Outcomes",
        columns=(Column("optimisation"), Column("outcome"), Column("why")),
        rows=tuple((outcome.name, outcome.status, outcome.why) for outcome in outcomes),
    )


def markdown(decisions: Decisions, outcomes: Sequence[Outcome]) -> str:
    where = [f"`{about(decisions)}`", ""] if about(decisions) else []
    head = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"] if decisions.tried else []
    body = [f"| {' | '.join(row)} |" for row in rows(decisions)]
    listed = [f"- {outcome.name}: {outcome.status} ({visible(outcome.why)})" for outcome in outcomes]
    return "\n".join([headline(decisions), "", account(decisions), "", *where, *head, *body, "", *listed, ""])


def html(decisions: Decisions, outcomes: Sequence[Outcome], run: str) -> str:
    trials, results = tried(decisions), outcome_table(outcomes)
    body = [
        f"<h1>{text(headline(decisions))}</h1>",
        paragraph(about(decisions), "lead"),
        paragraph(account(decisions)),
        section(trials.title, table(trials, caption=False) or paragraph("Nothing: the training ended first.")),
        section(results.title, table(results, caption=False)),
    ]
    return document(f"hotlap run {run}", "run", run, "\n".join(body))


def as_json(decisions: Decisions) -> str:
    return to_json(decisions)
