"""Renders a profile (an observation and its diagnosis) or a tune. Pure functions: nothing is read or measured."""

from __future__ import annotations

from rich.console import Console

from hotlap.records.codec import to_json
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.observation import Observation
from hotlap.records.tune_record import TuneRecord
from hotlap.records.visible import everywhere
from hotlap.report.profile import html as html_profile
from hotlap.report.profile import markdown as markdown_page
from hotlap.report.profile import terminal as terminal_page
from hotlap.report.profile.page import Page, page
from hotlap.report.tune import html as html_tune
from hotlap.report.tune import markdown as tune_markdown
from hotlap.report.tune import terminal as tune_terminal
from hotlap.report.tune.page import tune_page
from hotlap.report.tune.parts import TunePage

__all__ = [
    "as_json",
    "html",
    "markdown",
    "terminal",
    "tune_ending",
    "tuned_html",
    "tuned_json",
    "tuned_markdown",
    "tuned_terminal",
]


def _page(observation: Observation, diagnosis: Diagnosis) -> Page:
    """Build the page with control characters escaped: names come from the user's files and may hold anything."""
    return everywhere(page(observation, diagnosis))


def _tune_page(tuning: TuneRecord, observation: Observation | None, diagnosis: Diagnosis | None) -> TunePage:
    return everywhere(tune_page(tuning, observation, diagnosis))


def terminal(observation: Observation, diagnosis: Diagnosis, console: Console) -> None:
    terminal_page.draw(_page(observation, diagnosis), console)


def markdown(observation: Observation, diagnosis: Diagnosis) -> str:
    return markdown_page.draw(_page(observation, diagnosis))


def html(observation: Observation, diagnosis: Diagnosis, run: str) -> str:
    return html_profile.draw(_page(observation, diagnosis), run)


def as_json(observation: Observation, diagnosis: Diagnosis) -> str:
    return to_json({"observation": observation, "diagnosis": diagnosis})


def tuned_terminal(
    tuning: TuneRecord, observation: Observation | None, diagnosis: Diagnosis | None, console: Console
) -> None:
    tune_terminal.draw(_tune_page(tuning, observation, diagnosis), console)


def tune_ending(
    tuning: TuneRecord, observation: Observation | None, diagnosis: Diagnosis | None, console: Console
) -> None:
    tune_terminal.draw_ending(_tune_page(tuning, observation, diagnosis), console)


def tuned_markdown(tuning: TuneRecord, observation: Observation | None, diagnosis: Diagnosis | None) -> str:
    return tune_markdown.draw(_tune_page(tuning, observation, diagnosis))


def tuned_html(tuning: TuneRecord, observation: Observation | None, diagnosis: Diagnosis | None) -> str:
    return html_tune.draw(_tune_page(tuning, observation, diagnosis))


def tuned_json(tuning: TuneRecord, observation: Observation | None, diagnosis: Diagnosis | None) -> str:
    """Return the report as plain facts, with the records behind it and every raw sample."""
    shown = tune_page(tuning, observation, diagnosis)
    return to_json({"report": shown, "tuning": tuning, "observation": observation, "diagnosis": diagnosis})
