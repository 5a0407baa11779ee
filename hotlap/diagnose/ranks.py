"""Detectors for distributed jobs."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.diagnose.sentences import percent
from hotlap.diagnose.step import Step
from hotlap.records.diagnosis import Finding
from hotlap.records.figures import number
from hotlap.records.observation import BACKWARD, Rank

UNEVEN = 1.05  # times the work of the other ranks


def straggler(step: Step) -> Iterator[Finding]:
    """In backward, every rank waits for the one with the most work of its own."""
    ranks = step.observation.ranks
    if len(ranks) < 2:
        return
    slowest = max(ranks, key=lambda rank: rank.own_ms)
    others = [rank for rank in ranks if rank is not slowest]
    usual = sum(rank.own_ms for rank in others) / len(others)
    cost = slowest.own_ms - usual
    if usual <= 0 or slowest.own_ms < UNEVEN * usual or not step.worth_saying(cost):
        return
    yield step.finding(
        "straggler-rank",
        title=f"rank {slowest.rank} does {percent(slowest.own_ms / usual - 1)} more work of its own than the others",
        evidence=f"{number(slowest.own_ms)} against {number(usual)} ms a step"
        f"{_where(slowest, others)}; the others wait for it in backward",
        advice="give every rank the same amount of data and work: samples of similar size, logging spread evenly",
        place=None,
        cost=cost,
    )


def _where(slowest: Rank, others: list[Rank]) -> str:
    """Name the phase in which the slowest rank exceeds the others most."""
    extra = {
        phase: slowest.step_ms * share
        - sum(rank.step_ms * rank.shares.get(phase, 0.0) for rank in others) / len(others)
        for phase, share in slowest.shares.items()
        if phase != BACKWARD
    }
    phase = max(extra, key=lambda name: extra[name], default=None)
    return f", {number(extra[phase])} ms of the difference in {phase}" if phase is not None and extra[phase] > 0 else ""
