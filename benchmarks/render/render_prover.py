"""The tables about the prover in benchmarks/README.md: alike arms, planted speed-ups, planted harm, kill -9."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

HEAD = """## Can the prover be believed?

`hotlap tune` keeps what it has proven to be faster and harmless. These are attempts to make it err.
"""
ALIKE = """### Alike arms

Whole tunes in which nothing was changed, simulated on the step times of real processes (`python
benchmarks/prover/prover.py`). At most 5 % may end with a speed-up. *busy* was recorded while other work came and went
on the machine, *calm* while there was none.
"""
PLANTED = """### Planted speed-ups

The new arm's seconds are divided by the effect, on the calm step times: how often it is found, against what the power
calculation promised before the trial, by the number of processes per arm.
"""
HARM = """### Planted harm

The learnable tasks of the bundled workloads are trained with each harmful change (`python
benchmarks/prover/prover_harm.py`), and the gates judge the result. All must be rejected.
"""
HARMLESS = "Harmless changes must pass the same gates:\n"
BEYOND = "What so few steps cannot detect, stated and not hidden:\n"
THROUGH = """### Harm through the real tuner

Changes that make a small training faster but also do harm, planted as catalogue entries and tried by `hotlap tune`
itself (`python benchmarks/prover/prover_planted.py`). Each looks faster, so that only the gates can stop it; none may
be kept. A change that is as fast and does no harm must be kept in each of the three classes.
"""
KILL = """### kill -9

Real tunes killed at random moments and resumed by `hotlap tune --resume`, again and again (`python
benchmarks/prover/prover_kill.py`). Their script sleeps instead of loading data, so that the plan does not depend on
the load of the machine.
"""
PASSED = {True: "kept", False: "rejected", None: "no evidence"}


def section(folder: Path) -> list[str]:
    """Return the section's texts; none if there are no results."""
    parts = [
        text
        for pattern, draw in (
            ("prover", _speeds),
            ("prover-harm", _harm),
            ("prover-planted", _through),
            ("prover-kill", _kills),
        )
        for path in sorted((folder / "results").glob(f"*/*-{pattern}.json"))
        for text in (*draw(json.loads(path.read_text(encoding="utf-8"))), _source(path, folder))
    ]
    parts = [text for number, text in enumerate(parts) if text != THROUGH or THROUGH not in parts[:number]]
    return [HEAD, *parts] if parts else []


def _source(path: Path, folder: Path) -> str:
    found = json.loads(path.read_text(encoding="utf-8"))
    machine = found["machine"]
    where = f"{machine['cores']} cores of {machine['cpu']}, torch {machine['torch']}, Python {machine['python']}"
    return f"{where}, {found['date']}. Raw: [{path.name}]({path.relative_to(folder).as_posix()})\n"


def _speeds(found: dict[str, Any]) -> Iterator[str]:
    yield ALIKE
    yield _table(
        ("noise", "spread between processes", "tunes", "trials called faster", "tunes that end faster"),
        (
            (
                name,
                _percent(found["spread_between_processes"][name]),
                str(alike["tunes"]),
                f"{_percent(alike['share_of_trials_called_faster'])} of {alike['trials_alone']:,}",
                f"**{_percent(alike['share_of_tunes_that_end_faster'])}**",
            )
            for name, alike in found["alike"].items()
        ),
    )
    yield PLANTED
    yield _table(("planted", *(f"{count} per arm" for count in _counts(found))), _planted(found))


def _counts(found: dict[str, Any]) -> list[int]:
    return sorted({trial["per_arm"] for trial in found["planted"]})


def _planted(found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    by_place = {(trial["effect"], trial["per_arm"]): trial for trial in found["planted"]}
    for effect in sorted({effect for effect, _ in by_place}):
        cells = (by_place[effect, count] for count in _counts(found))
        figures = (f"{_percent(trial['found'])} (promised {_percent(trial['promised_mean'])})" for trial in cells)
        yield (_percent(effect - 1), *figures)


def _harm(found: dict[str, Any]) -> Iterator[str]:
    yield HARM
    yield _table(("harmful change", "on", "judged as", "result", "why"), _changes(found["harmful"]))
    yield HARMLESS
    yield _table(("harmless change", "on", "judged as", "result", "why"), _changes(found["harmless"]))
    yield BEYOND
    yield _table(("change", "on", "judged as", "result", "why"), _changes(found["out of reach"]))


def _changes(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for change in rows:
        task = change["workload"] + (f", {change['added']}" if change["added"] else "")
        result = PASSED[change["passed"]] + (" **wrong**" if change["as it should be"] is False else "")
        yield change["change"], task, change["risk"], result, change["why"]


def _through(found: dict[str, Any]) -> Iterator[str]:
    yield THROUGH
    groups = [("exact", found["at once"]), ("exact", found["later"]), *found["by class"].items()]
    yield _table(
        ("change", "class", "looked", "result", "why"),
        (
            (name, risk, _looked(outcome), "kept" if outcome["kept"] else "not kept", outcome["why"])
            for risk, group in groups
            for name, outcome in group.items()
        ),
    )
    yield f"{found['harmful kept']} of {found['harmful']} harmful changes kept.\n"


def _looked(outcome: dict[str, Any]) -> str:
    return f"{outcome['looked']:.1f}×" if outcome["looked"] else "–"


def _kills(found: dict[str, Any]) -> Iterator[str]:
    yield KILL
    tunes, kills = found["tunes"], [kill for tune in found["tunes"] for kill in tune["kills"]]
    yield _table(
        ("kills", "tunes", "ended with the same plan", "recorded samples lost", "processes still running"),
        [
            (
                str(len(kills)),
                str(len(tunes)),
                str(found["tunes_with_the_same_plan"]),
                f"{found['samples_lost']} of {sum(kill['recorded_samples'] for kill in kills)}",
                str(found["processes_left"]),
            )
        ],
    )
    yield _table(("killed while", "times"), _moments(kills))


def _moments(kills: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name in dict.fromkeys(kill["under_way"] for kill in kills):
        yield name, str(sum(kill["under_way"] == name for kill in kills))


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ("---",) * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
