"""Draws an observation and its diagnosis. Pure: nothing is read, nothing is measured."""

from __future__ import annotations

from rich.console import Console

from hotlap.model.codec import to_json
from hotlap.model.diagnosis import Diagnosis
from hotlap.model.observation import Observation
from hotlap.report import markdown_page, terminal_page
from hotlap.report.page import page

__all__ = ["as_json", "markdown", "terminal"]


def terminal(observation: Observation, diagnosis: Diagnosis, console: Console) -> None:
    terminal_page.draw(page(observation, diagnosis), console)


def markdown(observation: Observation, diagnosis: Diagnosis) -> str:
    return markdown_page.draw(page(observation, diagnosis))


def as_json(observation: Observation, diagnosis: Diagnosis) -> str:
    return to_json({"observation": observation, "diagnosis": diagnosis})
