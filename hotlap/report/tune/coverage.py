"""What was compared between both arms, and what was not covered: nothing beyond the comparison is proven."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hotlap.records.traces import Traces
from hotlap.records.trial import Sample, Trial, TrialStage
from hotlap.records.tune_record import TuneRecord
from hotlap.records.verdict import Decision, Gate
from hotlap.report.shared.figures import clean, plural
from hotlap.report.shared.parts import Column, Table
from hotlap.report.tune.arms import final_trial, measured

WORDS = {True: "same", False: "different", None: "unknown"}
MARGIN = (
    "memory may exceed the baseline's by a tenth, 200 MB, or a fiftieth of the machine's memory, whichever is most; "
    "--memory and --device-memory set other limits"
)
MOST_NAMED = 6


def longest_trial(tuning: TuneRecord) -> Trial | None:
    """Return the longer run of what is kept or, without one, the trial that proved it."""
    last = tuning.lasting
    found = next((trial for trial in tuning.trials if last is not None and trial.name == last.trial), None)
    return found if found is not None else final_trial(tuning)


def _gate(tuning: TuneRecord) -> Gate | None:
    last = tuning.lasting or tuning.speedup
    return last.gate if last is not None else None


def compared(tuning: TuneRecord) -> Table:
    gate = _gate(tuning)
    checks = gate.checks if gate is not None and tuning.kept else ()
    return Table(
        title="What was compared",
        columns=(Column("what"), Column("result"), Column("in words", minimum=24)),
        rows=tuple((check.name, WORDS[check.passed], clean(check.why)) for check in checks),
        note=MARGIN,
    )


def not_covered(tuning: TuneRecord) -> tuple[str, ...]:
    return tuple(clean(line) for line in _not_covered(tuning)) if tuning.kept else ()


def _not_covered(tuning: TuneRecord) -> Iterator[str]:
    trial = longest_trial(tuning)
    samples = measured(trial.samples) if trial is not None else ()
    traces = [sample.traces for sample in samples if sample.traces is not None]
    yield from _length(tuning, samples)
    if not traces:
        yield "Only speed and losses were compared."
    else:
        yield from _seen(traces)
    gate = _gate(tuning)
    left = [f"{check.name}: {name}" for check in (gate.checks if gate is not None else ()) for name in check.left_out]
    if left:
        yield f"Left out because it varies within the baseline: {_few(left)}."
    yield "Other machines, versions, data and options."


def steps_of(samples: Sequence[Sample]) -> int:
    return min((len(sample.losses) for sample in samples), default=0)


def _length(tuning: TuneRecord, samples: Sequence[Sample]) -> Iterator[str]:
    steps, epoch = steps_of(samples), tuning.epoch_steps
    if tuning.lasting is None and tuning.finished:
        yield f"Anything after {steps:,} steps: the budget did not cover a longer run; give a larger --budget."
    elif epoch is not None and steps < epoch and steps != tuning.full_steps:
        yield f"Anything after {steps:,} of the {epoch:,} steps of an epoch."
    elif steps != tuning.full_steps:
        yield f"Anything after {steps:,} steps."


def _seen(traces: Sequence[Traces]) -> Iterator[str]:
    states = [trace.state for trace in traces if trace.state is not None]
    if not any(state.evaluations for state in states):
        yield "Evaluation: none was seen in the longest run."
    if not any(trace.saved for trace in traces):
        yield "Checkpoints: no file was saved in the longest run."
    world = max((state.world for state in states), default=1)
    if world > 1:
        others = plural(world - 1, "process", "processes")
        yield f"{others} of the {world} that train together: only the first was examined."
    lost = list(dict.fromkeys(name for trace in traces for name in trace.cut))
    lost += list(dict.fromkeys(name for state in states for name in state.unreadable))
    if lost:
        yield f"Too large, or unreadable: {_few(lost)}."


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def fell_later(tuning: TuneRecord, entry: str, value: str | None) -> str | None:
    """Return why an optimisation that was kept at first did not hold over the longer run."""
    for verdict in reversed(tuning.verdicts):
        trial = next((past_trial for past_trial in tuning.trials if past_trial.name == verdict.trial), None)
        failed = verdict.stage == TrialStage.LASTING and verdict.decision != Decision.KEEP
        if failed and trial is not None and (entry, value) in [(choice.name, choice.value) for choice in trial.new]:
            return verdict.why
    return None
