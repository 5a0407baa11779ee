"""Compares everything both arms leave behind besides the loss: one check per subject, and every check must pass.

- Numbers (weights, optimizer state, tensors that are saved or that the program's objects hold, model outputs in
  evaluation). Exact: equal. Rounding: no further apart than two runs of the baseline. Numeric: moved about as far as
  the baseline's, or as still as those.
- Random streams, the program's own generators and schedulers, exit code, model calls in evaluation, and the saved files
  with their kinds and the names in them: equal; a change of numeric class may use a device's random stream differently.
- Printed lines and text files. Exact: equal. Otherwise: equal except for their numbers.
- The metric. Exact: equal. Otherwise: see gates.py.

Only a difference that two processes of the baseline with the same seed do not show rejects a change. What the baseline
itself does not repeat is left out and reported; while that is unknown, nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hotlap.judge import facts as of
from hotlap.judge.facts import DIGEST, Fact, shown
from hotlap.judge.repeats import Reference, RepeatedRuns, Stability, apart, by_name, length, moved
from hotlap.records.plan import Risk
from hotlap.records.traces import Fingerprint
from hotlap.records.trial import EndReason, Sample, Trial, TrialStage
from hotlap.records.verdict import Check

EVALUATION = "evaluation"
TWICE = 2.0  # with lower precision a weight may move at most twice as far, and at least half as far
STILL = 2.0**-12  # of its size: a weight that moved no further than this counts as still

FactsOf = Callable[[Sample, Risk], Iterable[Fact]]
PrintsOf = Callable[[Sample], Iterable[Fingerprint]]


@dataclass(frozen=True, slots=True)
class Subject:
    name: str
    facts: FactsOf
    prints: PrintsOf | None = None  # fingerprints of the facts that are numbers
    more_from: Risk | None = None  # from this risk on the new arm may have facts that the baseline lacks
    if_both: bool = False  # compare only facts that both arms have
    of_training: bool = False  # they vary by rounding only where the losses do, and else for another reason


def _weights(sample: Sample) -> Iterable[Fingerprint]:
    return of.state_of(sample).weights


def _optimizers(sample: Sample) -> Iterable[Fingerprint]:
    return of.state_of(sample).optimizers


def _held(sample: Sample) -> Iterable[Fingerprint]:
    return of.state_of(sample).held


def _outputs(sample: Sample) -> Iterator[Fingerprint]:
    for number, evaluation in enumerate(of.state_of(sample).evaluations, start=1):
        values = (evaluation.total, evaluation.size)
        yield Fingerprint(
            name=f"evaluation {number}: model output", digest=repr(values), norm=evaluation.size, sketch=values
        )


def _saved(sample: Sample) -> Iterator[Fingerprint]:
    for name, fingerprint in of.saved_parts(sample):
        yield replace(fingerprint, name=name)


SUBJECTS = (
    Subject(EVALUATION, of.evaluations, _outputs),
    Subject("weights", of.weights, _weights, more_from=Risk.EXACT),
    Subject("optimizer state", of.optimizers, _optimizers, more_from=Risk.ROUNDING),
    Subject("random streams", of.streams),
    Subject("own random streams", of.own_streams, if_both=True),
    Subject("schedulers", of.schedulers, if_both=True),
    Subject("own tensors", of.held, _held, more_from=Risk.EXACT, of_training=True),
    Subject("own arrays", of.contents, if_both=True),
    Subject("saved files", of.files, _saved),
    Subject("process", of.processes),
    Subject("printed lines", of.printed),
    Subject("error lines", of.complained, more_from=Risk.ROUNDING),
    Subject("metric", of.metrics),
    Subject("exit code", of.exit_codes, if_both=True),
)


def checks(trial: Trial, noise: Trial | None, earlier: Sequence[Sample]) -> tuple[Check, ...]:
    """Return one check per subject; none if no process recorded more than its losses."""
    new = [sample for sample in trial.of("new") if sample.ended == EndReason.MEASURED]
    unchanged = RepeatedRuns(trial, noise, earlier)
    if not any(sample.traces is not None for sample in (*new, *trial.of("base"))):
        return ()
    pairs = [(base, sample) for sample in new if (base := unchanged.like(sample)) is not None]
    if not pairs or any(sample.traces is None or sample.traces.state is None for pair in pairs for sample in pair):
        why = "no two processes with the same seed and number of steps reported their final state"
        return (Check(name="weights", passed=None, why=why),)
    risk = Risk(trial.risk)
    return tuple(_check(subject, risk, pairs, unchanged, trial.stage) for subject in SUBJECTS)


def _check(
    subject: Subject, risk: Risk, pairs: Sequence[tuple[Sample, Sample]], unchanged: RepeatedRuns, stage: str
) -> Check:

    def facts(sample: Sample) -> Iterable[Fact]:
        return subject.facts(sample, risk)

    close = subject.prints is not None and risk is not Risk.EXACT
    stability = Stability(unchanged, facts)
    numbers = (
        {fingerprint.name for base, _ in pairs for fingerprint in subject.prints(base)}
        if subject.prints is not None
        else set()
    )
    more_is_fine = subject.more_from is not None and risk.rank >= subject.more_from.rank
    failed, unknown, left_out, count = list[str](), list[str](), dict[str, str](), 0
    for base, new in pairs:
        left, right = by_name(facts(base)), by_name(facts(new))
        count, strays = max(count, len(left)), 0
        for name in {**left, **right}:
            before, after = left.get(name), right.get(name)
            same = (
                before is not None
                and after is not None
                and (before.value == after.value or (close and name in numbers))
            )
            if same or (before is None and more_is_fine) or (subject.if_both and None in (before, after)):
                continue
            fact = before or right[name]
            strays += before is None
            if fact.kind in stability.unstable or (before is None and strays <= stability.wild):
                left_out[name] = fact.kind
            elif stability.knows(fact, length(new)):
                failed.append(_difference(name, before, after))
            else:
                unknown.append(_difference(name, before, after))
    if subject.prints is not None and (close or left_out):
        only = None if close else set(left_out)
        if subject.of_training and unchanged.repeat_losses:
            wild = stability.unstable
            only = (numbers if only is None else only) - wild
            left_out |= {name: name for name in numbers & wild}
        more_failed, more_unknown = _numbers(subject.prints, risk, pairs, unchanged, only, stage)
        failed, unknown = [*failed, *more_failed], [*unknown, *more_unknown]
    return _verdict(subject.name, risk, failed, unknown, tuple(dict.fromkeys(left_out.values())), count)


def _verdict(name: str, risk: Risk, failed: list[str], unknown: list[str], left: tuple[str, ...], count: int) -> Check:
    if failed:
        more = f" (and {len(failed) - 1:,} more)" if len(failed) > 1 else ""
        return Check(name=name, passed=False, why=f"{name}: {failed[0]}{more}", left_out=left)
    if unknown:
        why = f"{name}: {unknown[0]}, and it is not known whether the baseline repeats that"
        return Check(name=name, passed=None, why=why, left_out=left)
    same = "equal" if risk is Risk.EXACT else "within the limits"
    return Check(name=name, passed=True, why=f"{count:,} compared, {same}" if count else "none seen", left_out=left)


def _difference(name: str, before: Fact | None, after: Fact | None) -> str:
    if before is None:
        return f"{name} is new"
    if after is None:
        return f"{name} is missing"
    if DIGEST.fullmatch(before.value):
        return f"{name} differs"
    if (lacks := sorted(set(before.value.split(", ")) - set(after.value.split(", ")))) and ", " in before.value:
        return f"{name} lacks {shown(', '.join(lacks))}"
    return f"{name} is {shown(after.value)} instead of {shown(before.value)}"


def _numbers(
    prints: PrintsOf,
    risk: Risk,
    pairs: Sequence[tuple[Sample, Sample]],
    unchanged: RepeatedRuns,
    only: set[str] | None,
    stage: str,
) -> tuple[list[str], list[str]]:
    """Return what is wrong with numbers that need not be equal, and what could not be decided.

    `only` names the numbers that the baseline itself does not repeat; the others must then be equal.
    """
    reference = Reference(unchanged, prints)
    failed, unknown = list[str](), list[str]()
    for base, new in pairs:
        left = {
            fingerprint.name: fingerprint for fingerprint in prints(base) if only is None or fingerprint.name in only
        }
        right = {fingerprint.name: fingerprint for fingerprint in prints(new)}
        differing = [name for name in left if name in right and left[name].digest != right[name].digest]
        if risk is Risk.NUMERIC:
            failed += [reason for name in differing if (reason := _not_as_far(left[name], right[name])) is not None]
        elif reference.pairs(length(new)):
            failed += [
                reason for name in differing if (reason := _too_far(left[name], right[name], reference, length(new)))
            ]
        elif differing and stage != TrialStage.STACKED:  # stacked arms run longer; the final trial has a reference
            unknown.append(f"{differing[0]} differs")
    return failed, unknown


def _too_far(base: Fingerprint, new: Fingerprint, reference: Reference, steps: int) -> str | None:
    far, allowed = apart(base, new), reference.allowed(base, steps)
    if far <= allowed:
        return None
    return f"{base.name} differs by {far:.2g}, where rounding explains {allowed:.2g}"


def _not_as_far(base: Fingerprint, new: Fingerprint) -> str | None:
    before, after = moved(base), moved(new)
    still = STILL * max(base.norm, new.norm)
    if max(before, after) <= still or (before > 0 and 1 / TWICE <= after / before <= TWICE):
        return None
    return f"{base.name} moved by {after:.2g} where the baseline's moved by {before:.2g}"
