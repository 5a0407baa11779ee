"""Turns an observation into a verdict, findings with a bound on each gain, and a list of what is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hotlap.diagnose import compute, data_path, host, ranks, settings
from hotlap.diagnose.source import joined
from hotlap.diagnose.step import Step
from hotlap.diagnose.unknowns import unknowns
from hotlap.diagnose.verdict import verdict
from hotlap.records.codec import SCHEMA
from hotlap.records.diagnosis import Diagnosis, Finding
from hotlap.records.observation import Observation
from hotlap.records.scan_finding import Scan

__all__ = ["diagnose"]

DETECTORS: tuple[Callable[[Step], Iterator[Finding]], ...] = (
    settings.anomaly_mode,
    data_path.data_wait,
    data_path.copies,
    host.syncs,
    compute.launch_overhead,
    ranks.straggler,
    host.garbage,
    compute.slow_optimizer,
    compute.unfused_optimizer,
    host.rest,
    host.spans,
    compute.forward,
    compute.backward,
    settings.autocast_recurrent,
    settings.channels_last,
    settings.tf32_off,
    host.evaluation,
    settings.threads_oversubscribed,
    settings.memory_near_limit,
)

OF_VERDICT = {  # what a verdict is about comes first, then by bound; equals keep the order above
    "input-bound": ("data-wait",),
    "sync-bound": ("sync-in-loop",),
    "copy-bound": ("pageable-copy", "blocking-copy"),
    "launch-bound": ("launch-overhead",),
    "compute-bound": (
        "straggler-rank",
        "slow-forward",
        "slow-backward",
        "slow-optimizer",
        "unfused-optimizer",
        "channels-last",
        "tf32-off",
    ),
}


def diagnose(observation: Observation, scan: Scan | None = None) -> Diagnosis:
    """Diagnose an observation; with a scan of the source, each finding also names the code that causes it."""
    step = Step(observation)
    name, sentence = verdict(step)
    found = [finding for detector in DETECTORS for finding in detector(step)] if step.measured else []
    measured = Diagnosis(
        schema=SCHEMA,
        verdict=name,
        sentence=sentence,
        findings=tuple(
            sorted(found, key=lambda finding: (finding.code not in OF_VERDICT.get(name, ()), -finding.at_most))
        ),
        unknowns=unknowns(step),
    )
    return joined(measured, observation, scan) if scan is not None else measured
