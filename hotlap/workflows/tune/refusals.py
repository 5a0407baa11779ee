"""Errors for a baseline that cannot be measured: what is wrong with it and what to do, in one line."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.errors import BaselineUnusable, CannotRunTwice, HotlapError, MetricNeverSeen, TooShort
from hotlap.records.trial import EndReason, Sample
from hotlap.records.tune_record import VALUE, Metric, TuneRequest


def refuse_baseline(samples: Sequence[Sample], request: TuneRequest, run: str) -> None:
    """Raise if a process of the unmodified command did not do what it should have."""
    last = samples[-1]
    unread = request.metric is not None and not last.readings
    if unread and last.ended in (EndReason.MEASURED, EndReason.OVER_TIME):
        raise MetricNeverSeen(_never_seen(request.metric, last))
    if last.ended != EndReason.MEASURED:
        raise _failed(last, run)
    lengths = sorted({steps_of(sample) for sample in samples if sample.losses})
    if len(lengths) > 1 and request.metric is None:
        raise TooShort(
            f"the command ends after a different number of steps each time ({', '.join(map(str, lengths))}); "
            f"measure fewer: --steps {max(1, lengths[0] - 1)}"
        )


def steps_of(sample: Sample) -> int:
    return len(sample.losses) or sample.warmup_steps + sum(block.steps for block in sample.blocks)


def _failed(sample: Sample, run: str) -> HotlapError:
    ended, again = EndReason(sample.ended), f"then continue: hotlap tune --resume {run}"
    if ended is EndReason.CRASHED:
        return CannotRunTwice(
            f"the command ran once but not again: {sample.why}; it must be possible to run it repeatedly "
            f"(a free port, no lock left behind, no file that must not exist), {again}"
        )
    if ended is EndReason.TOO_SHORT:
        return TooShort(f"the command is too short to measure: {sample.why}; train longer, or measure fewer: --steps N")
    if ended is EndReason.NOT_A_NUMBER:
        return BaselineUnusable(f"{sample.why} even without any optimisation; fix that first, {again}")
    if ended in (EndReason.OUT_OF_MEMORY, EndReason.OVER_MEMORY):
        return BaselineUnusable(f"the unmodified command ran out of memory ({sample.why}); make room, {again}")
    return BaselineUnusable(
        f"the unmodified command could not be measured: {ended} ({sample.why}); see it with: hotlap profile"
    )


def _never_seen(metric: Metric | None, last: Sample) -> str:
    assert metric is not None
    steps = f"{steps_of(last)} steps" if steps_of(last) else f"{last.seconds:.0f} s"
    if metric.pattern is not None:
        what = f"nothing the command printed in {steps} matches --metric '{metric.pattern}'; check the pattern"
    elif metric.tag is not None:
        what = f"no TensorBoard scalar '{metric.tag}' was written in {steps}; check the tag"
    else:
        what = (
            f'hotlap.metric("{metric.name}", …) was never called in {steps}; check the name, or read what is printed: '
            f"--metric '{metric.name}{VALUE}'"
        )
    return f"{what}, or measure more with --steps N or a larger --budget"
