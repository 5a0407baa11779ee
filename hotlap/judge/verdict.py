"""Keep, reject or inconclusive, with the reason in one sentence.

The order matters: a broken run rejects, then one that did nothing, then a failed gate; speed comes last. A change that
is faster and harmless is kept. One that is not faster is rejected if the sample could have shown the minimum effect,
and inconclusive if it could not.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hotlap.judge.gates import gate, with_check
from hotlap.judge.late_slowdown import late_check
from hotlap.judge.memory import MemoryLimits
from hotlap.judge.speed import measured, speed
from hotlap.records.codec import SCHEMA
from hotlap.records.plan import Risk, Status
from hotlap.records.trial import EndReason, Sample, Trial, TrialStage
from hotlap.records.tune_record import TuneRequest
from hotlap.records.verdict import Decision, Gate, PaysOff, Speed, Verdict

FAR_TOO_MANY = 100  # processes per arm: more than any tune runs


def judge(
    trial: Trial,
    noise: Trial | None,
    request: TuneRequest,
    earlier: Sequence[Sample] = (),
    epoch_steps: int | None = None,
) -> Verdict:
    """Judge a trial. `noise` is the trial of the baseline against itself; None only while there is none yet.

    `earlier` holds what ran as `trial.base` in other trials: whether it repeats itself decides how EXACT is judged.
    """
    found = speed(trial, noise, request.minimum)
    allowed = MemoryLimits(host_mb=request.memory_mb, device_mb=request.device_mb, epoch_steps=epoch_steps)
    quality = gate(trial, noise, request.metric, earlier, allowed) if trial.stage != TrialStage.NOISE else None
    if quality is not None and trial.stage == TrialStage.LASTING:
        quality = with_check(quality, late_check(trial, found))
    decision, why = _decide(trial, found, quality, request)
    return Verdict(
        schema=SCHEMA,
        trial=trial.name,
        stage=trial.stage,
        entry=trial.entry,
        value=trial.value,
        decision=decision,
        why=why,
        speed=found,
        gate=quality,
        pays_off=pays_off(trial),
    )


def _decide(trial: Trial, found: Speed | None, quality: Gate | None, request: TuneRequest) -> tuple[Decision, str]:
    broken = _broken(trial.of("base"))
    if broken:
        return Decision.INCONCLUSIVE, f"the baseline itself ended badly: {broken}"
    broken = _broken(trial.of("new")) or _idle(trial) or _too_risky(trial, request)
    if broken:
        return Decision.REJECT, broken
    if found is None:
        return Decision.INCONCLUSIVE, "nothing was measured in one of the arms"
    if quality is None:
        return Decision.REJECT, f"the baseline against itself: {_ratio(found)}, {_band(found)}; nothing to keep"
    if quality.passed is False:
        return Decision.REJECT, quality.why
    if not found.faster and (trial.stage != TrialStage.LASTING or found.slower):
        return _not_faster(found)
    if quality.passed is None:
        return (
            Decision.INCONCLUSIVE,
            f"{_ratio(found)}, but it is not yet known to be harmless: {quality.why}{_more(quality)}",
        )
    return Decision.KEEP, f"{_ratio(found)}, and {quality.why}"


def _not_faster(found: Speed) -> tuple[Decision, str]:
    if found.slower:
        return Decision.REJECT, f"slower: {_ratio(found)}"
    least = f"{100 * (found.minimum - 1):.3g} %"
    certain = found.resampled == "processes" and found.high is not None and found.high < found.minimum
    if found.more == 0 or certain:
        return Decision.REJECT, f"not faster by {least} or more: {_ratio(found)}, {_band(found)}"
    fewest = min(found.more, found.more_as_measured) or found.more
    more = str(fewest) if fewest < FAR_TOO_MANY else f"more than {FAR_TOO_MANY}"
    return (
        Decision.INCONCLUSIVE,
        f"{_ratio(found)}, {_band(found)}: too noisy to show {least}, needs {more} more processes on each side",
    )


def _broken(samples: Sequence[Sample]) -> str | None:
    bad = [sample for sample in samples if sample.ended != EndReason.MEASURED]
    if not bad:
        return None
    share = f"{len(bad)} of {len(samples)} processes ended: {bad[0].ended}"
    return f"{share} ({bad[0].why})" if bad[0].why else share


def _idle(trial: Trial) -> str | None:
    """Return why the entry did nothing in any process, or None; the ratio of such arms is noise."""
    reported = [outcome for sample in trial.of("new") for outcome in sample.outcomes if outcome.name == trial.entry]
    if trial.entry is None or not reported or any(outcome.status == Status.APPLIED for outcome in reported):
        return None
    return f"{reported[0].status}: {reported[0].why}"


def _too_risky(trial: Trial, request: TuneRequest) -> str | None:
    if (
        trial.stage == TrialStage.NOISE
        or Risk(trial.risk) is Risk.TRAINING
        or Risk(trial.risk).rank <= Risk(request.risk).rank
    ):
        return None
    return f"its risk is {trial.risk}, but only {request.risk} is allowed: add --risk {trial.risk}"


def pays_off(trial: Trial) -> PaysOff | None:
    """Return when the speed-up has repaid a slower start, in steps of the baseline."""
    base, new = measured(trial.of("base")), measured(trial.of("new"))
    if not base or not new:
        return None
    per_step = median(block.samples / block.steps for sample in base for block in sample.blocks)
    before, after = (per_step * _seconds_per_sample(arm) for arm in (base, new))
    extra = _start(new, after) - _start(base, before)
    if extra <= 0:
        return PaysOff(extra_seconds=extra, steps=0, seconds=0.0)
    if after >= before:
        return PaysOff(extra_seconds=extra, steps=None, seconds=None)
    steps = int(extra / (before - after)) + 1
    return PaysOff(extra_seconds=extra, steps=steps, seconds=steps * before)


def _start(samples: Sequence[Sample], step: float) -> float:
    """Return the seconds until training reaches full speed, beyond what its steps would have taken at full speed."""
    return median(sample.startup_seconds + sample.warmup_seconds - sample.warmup_steps * step for sample in samples)


def _seconds_per_sample(samples: Sequence[Sample]) -> float:
    blocks = [block for sample in samples for block in sample.blocks]
    return sum(block.seconds for block in blocks) / sum(block.samples for block in blocks)


def _ratio(found: Speed) -> str:
    interval = "" if found.low is None or found.high is None else f" (95 %: {found.low:.3f} to {found.high:.3f})"
    return f"{found.ratio:.3f} × as fast{interval}"


def _band(found: Speed) -> str:
    if found.noise_low is None or found.noise_high is None:
        return "noise not yet known"
    return f"noise {found.noise_low:.3f} to {found.noise_high:.3f}"


def _more(quality: Gate) -> str:
    return f"; needs {quality.more} more" if quality.more else ""
