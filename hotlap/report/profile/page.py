"""The page of a profile as plain text and tables, shared by all output formats."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.records.caution import Caution
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.observation import EVALUATION, SPAN_PREFIX, Observation
from hotlap.report.profile import actions, facts, tables
from hotlap.report.shared.figures import ordered_shares
from hotlap.report.shared.parts import Segment, Table


@dataclass(frozen=True, slots=True)
class Page:
    verdict: str
    sentence: str
    figures: tuple[str, ...]  # the line of figures under the verdict
    background: tuple[str, ...]  # warm-up, memory, loss
    segments: tuple[Segment, ...]
    tables: tuple[Table, ...]
    advice: tuple[str, ...]  # of the findings, the first of the next steps
    next_steps: tuple[str, ...]
    cautions: tuple[str, ...]
    unknowns: tuple[str, ...]
    footer: tuple[tuple[str, str], ...]


def page(observation: Observation, diagnosis: Diagnosis) -> Page:
    return Page(
        verdict=diagnosis.verdict,
        sentence=diagnosis.sentence,
        figures=tuple(facts.figures(observation)),
        background=tuple(facts.background(observation)),
        segments=segments(observation),
        tables=tables.all_of(observation, diagnosis),
        advice=actions.advice(observation, diagnosis),
        next_steps=actions.next_steps(observation, diagnosis),
        cautions=tuple(caution_text(name) for name in observation.cautions),
        unknowns=diagnosis.unknowns,
        footer=tuple(facts.footer(observation)),
    )


def segments(observation: Observation) -> tuple[Segment, ...]:
    """Divide a training step into its phases, in the shares that the verdict and the findings name."""
    shares = [(phase, share) for phase, share in ordered_shares(observation.shares) if phase != EVALUATION]
    whole = sum(share for _, share in shares)
    return tuple(
        Segment(
            phase=phase,
            name=phase.removeprefix(SPAN_PREFIX),
            ms=share * observation.mean_step_ms,
            share=share / whole,
        )
        for phase, share in shares
    )


def caution_text(name: str) -> str:
    """Return the text of a caution; an unknown name, from a record of another version, is spelled out."""
    return Caution[name].value if name in Caution.__members__ else name.lower().replace("_", " ")
