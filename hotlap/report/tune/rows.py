"""One row per optimisation: what was measured, whether it is harmless, and why it is kept or rejected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hotlap.records.plan import Choice, Status
from hotlap.records.trial import Trial, TrialStage
from hotlap.records.tune_record import TuneRecord
from hotlap.records.verdict import Decision, Gate, Speed, Verdict
from hotlap.report.shared.figures import clean, duration, plural, times
from hotlap.report.tune.arms import NEW, broken, interval
from hotlap.report.tune.coverage import fell_later
from hotlap.report.tune.parts import FAILED, INCONCLUSIVE, KEPT, LEFT_OUT, PENDING, REJECTED, STATES, Row

FAR_TOO_MANY = 100
Key = tuple[str, str | None]  # entry and value


def rows(tuning: TuneRecord) -> tuple[Row, ...]:
    """Return a row for each optimisation: kept ones in the order of the plan, then by state in the order tried."""
    unordered = [_row(tuning, key) for key in _keys(tuning)]
    plan = [named(choice.name, choice.value) for choice in tuning.kept]
    order = {name: i for i, name in enumerate(plan)}
    return tuple(sorted(unordered, key=lambda row: (STATES.index(row.state), order.get(row.name, 0))))


def named(entry: str, value: str | None) -> str:
    return clean(f"{entry}={value}" if value is not None else entry)


def _keys(tuning: TuneRecord) -> list[Key]:
    """Return everything that was tried, or kept from an earlier session, in order."""
    tried = [(trial.entry, trial.value) for trial in tuning.trials if trial.entry is not None]
    judged = [(verdict.entry, verdict.value) for verdict in tuning.verdicts if verdict.entry is not None]
    kept = [(choice.name, choice.value) for choice in tuning.kept]
    together = [
        key for verdict in tuning.verdicts if verdict.decision != Decision.KEEP for key in _group(tuning, verdict)
    ]
    return list(dict.fromkeys([*tried, *judged, *together, *kept]))


def _group(tuning: TuneRecord, verdict: Verdict) -> list[Key]:
    """Return the optimisations tried together in a stacked trial; none for a trial of a single one."""
    if verdict.entry is not None or verdict.stage != TrialStage.STACKED:
        return []
    trial = next((past_trial for past_trial in tuning.trials if past_trial.name == verdict.trial), None)
    return (
        [(choice.name, choice.value) for choice in trial.new if choice not in trial.base] if trial is not None else []
    )


def _row(tuning: TuneRecord, key: Key) -> Row:
    alone, stacked = _verdict(tuning, key, TrialStage.ALONE), _verdict(tuning, key, TrialStage.STACKED)
    stacked = stacked or _with_others(tuning, key)
    tried = [trial for trial in tuning.trials if (trial.entry, trial.value) == key]
    last = stacked or alone
    state = _state(tuning, key, last, tried)
    gate = last.gate if last else None
    return Row(
        name=named(*key),
        code=clean(_code(tuning, key, tried)),
        risk=tried[-1].risk if tried else _risk(tuning, key),
        state=state,
        alone=interval(alone.speed if alone else None),
        stacked=interval(stacked.speed if stacked else None),
        gate=gate_word(gate),
        rule=clean(gate.rule) if gate else "",
        gate_why=clean(gate.why) if gate else "",
        why=_why(tuning, key, state, last),
        notes=tuple(clean(note) for note in _notes(last, tried)),
    )


def _verdict(tuning: TuneRecord, key: Key, stage: TrialStage) -> Verdict | None:
    """Return the last verdict: a trial is judged again after more processes."""
    found = [verdict for verdict in tuning.verdicts if (verdict.entry, verdict.value) == key and verdict.stage == stage]
    return found[-1] if found else None


def _with_others(tuning: TuneRecord, key: Key) -> Verdict | None:
    """Return the verdict of the last group trial with this optimisation, its reason naming the others."""
    for verdict in reversed(tuning.verdicts):
        group = _group(tuning, verdict)
        if key in group:
            others = [named(*member) for member in group if member != key]
            return replace(verdict, why=f"together with {', '.join(others)}: {verdict.why}")
    return None


def _risk(tuning: TuneRecord, key: Key) -> str:
    return next((candidate.risk for candidate in tuning.candidates if candidate.entry == key[0]), "")


def _code(tuning: TuneRecord, key: Key, tried: list[Trial]) -> str:
    candidates = (candidate.code for candidate in tuning.candidates if candidate.entry == key[0])
    outcomes = (
        outcome.code
        for trial in tried
        for sample in trial.of(NEW)
        for outcome in sample.outcomes
        if outcome.name == key[0]
    )
    return next(iter([*candidates, *outcomes]), "")


def _state(tuning: TuneRecord, key: Key, last: Verdict | None, tried: list[Trial]) -> str:
    if key in [(choice.name, choice.value) for choice in tuning.kept]:
        return KEPT
    if last is None:
        return PENDING
    if last.decision == Decision.INCONCLUSIVE:
        return INCONCLUSIVE
    if last.decision == Decision.KEEP:
        return LEFT_OUT
    return FAILED if tried and any(sample.arm == NEW for sample in broken(tried[-1])) else REJECTED


def gate_word(gate: Gate | None) -> str:
    if gate is None:
        return "not reached"
    return {True: "passed", False: "failed", None: "no evidence"}[gate.passed]


def _why(tuning: TuneRecord, key: Key, state: str, last: Verdict | None) -> str:
    if last is None:
        return "part of the plan, without a trial of its own" if state == KEPT else "its trial has not ended yet"
    if state != LEFT_OUT:
        return clean(last.why)
    return f"{clean(last.why)}, but {_left_out(tuning, key)}"


def _left_out(tuning: TuneRecord, key: Key) -> str:
    kept: Choice | None = next((choice for choice in tuning.kept if choice.name == key[0]), None)
    if kept is not None:
        return f"the plan has {named(kept.name, kept.value)} instead"
    later = fell_later(tuning, *key)
    if later is not None:
        return f"it does not hold over the longer run of the last stage: {clean(later)}"
    return "the plan leaves it out" if tuning.finished else "not yet tried on top of what is kept"


def _notes(last: Verdict | None, tried: list[Trial]) -> Iterator[str]:
    """Yield notes that the reason does not already contain."""
    why = last.why if last is not None else ""
    if last is not None and last.speed is not None:
        yield from _needed(last.speed, why)
    if last is not None and last.gate is not None and last.gate.more and "more" not in why:
        yield f"its check for harm needs {last.gate.more} more"
    if last is not None and last.decision != Decision.INCONCLUSIVE:
        yield from pays_off(last)
    yield from _endings(tried, why)
    yield from (outcome for outcome in _outcomes(tried) if outcome not in why)


def _needed(speed: Speed, why: str) -> Iterator[str]:
    if not speed.more or speed.faster or speed.slower:  # a proven result needs no more processes
        return
    if "more" not in why:
        yield f"needs {more_processes(speed)}"
    if speed.smallest:
        yield f"the smallest speed-up this sample could show is {times(speed.smallest)}"


def more_processes(speed: Speed) -> str:
    """Say how many more processes would show the minimum effect, or the measured ratio if that takes fewer."""
    more = min(speed.more, speed.more_as_measured) or speed.more
    if more > FAR_TOO_MANY:
        return f"far more than {FAR_TOO_MANY} more processes on each side"
    return f"{plural(more, 'more process', 'more processes')} on each side"


def pays_off(verdict: Verdict) -> Iterator[str]:
    known = verdict.pays_off
    if known is None or known.extra_seconds <= 0:
        return
    longer = f"it takes {duration(known.extra_seconds)} longer to get up to speed"
    if known.steps is None:
        yield f"{longer}, which is never won back"
    else:
        yield f"{longer}, won back after {plural(known.steps, 'step')} ({duration(known.seconds)})"


def _endings(tried: list[Trial], why: str) -> Iterator[str]:
    """Yield each way in which a process with the optimisation broke, once."""
    found = [
        sample
        for trial in tried
        for sample in broken(trial)
        if sample.arm == NEW and (sample.why or sample.ended) not in why
    ]
    yield from dict.fromkeys(f"{sample.ended}: {sample.why}" if sample.why else sample.ended for sample in found)


def _outcomes(tried: list[Trial]) -> Iterator[str]:
    """Yield what the optimisation reported in its last trial where it was not applied."""
    for trial in tried[-1:]:
        reported = [outcome for sample in trial.of(NEW) for outcome in sample.outcomes if outcome.name == trial.entry]
        yield from dict.fromkeys(
            f"{outcome.status}: {outcome.why}" for outcome in reported if outcome.status != Status.APPLIED
        )
