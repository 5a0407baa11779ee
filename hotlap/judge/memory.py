"""The memory gate: a change that exceeds the baseline by more than a margin, or keeps growing, is not kept.

The margin is a tenth of what the baseline uses, 200 MB, or a fiftieth of what the machine has, whichever is largest.
--memory and --device-memory state the limit explicitly and replace the margin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from hotlap.records.traces import State, Weight
from hotlap.records.trial import EndReason, Sample, Trial
from hotlap.records.verdict import Check

SHARE, LEAST_MB, OF_ALL = 0.10, 200.0, 0.02
NOTICED_MB = 16.0  # less growth than this is ordinary fluctuation
QUARTERS = 4
EACH_QUARTER = 0.1  # of the growth, at least: memory that stopped growing is not growing
AHEAD = 10  # times the steps measured, or an epoch if that is longer

Series = Sequence[tuple[int, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLimits:
    host_mb: float | None = None  # as requested; None: the margin applies
    device_mb: float | None = None
    epoch_steps: int | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """Memory of the host or of the device."""

    name: str
    option: str
    peaks: tuple[tuple[str, Callable[[Sample], float | None]], ...]
    at: Callable[[Weight], float | None]
    total: Callable[[State], float | None]

    def margin_mb(self, base_mb: float, samples: Sequence[Sample]) -> float:
        states = [
            sample.traces.state for sample in samples if sample.traces is not None and sample.traces.state is not None
        ]
        there = max((self.total(state) or 0.0 for state in states), default=0.0)
        return max(SHARE * base_mb, LEAST_MB, OF_ALL * there)


def _tree(sample: Sample) -> float | None:
    return sample.traces.tree_mb if sample.traces is not None else None


def _reserved(sample: Sample) -> float | None:
    state = sample.traces.state if sample.traces is not None else None
    return state.reserved_mb if state is not None else None


HOST = Kind(
    "host memory",
    "--memory",
    (("the training process", lambda sample: sample.host_mb), ("all its processes together", _tree)),
    lambda weight: weight.host_mb,
    lambda state: state.host_total_mb,
)
DEVICE = Kind(
    "device memory",
    "--device-memory",
    (("the tensors", lambda sample: sample.device_mb), ("torch's allocator", _reserved)),
    lambda weight: weight.device_mb,
    lambda state: state.device_total_mb,
)


def memory_checks(trial: Trial, allowed: MemoryLimits) -> Iterator[Check]:
    base, new = ([sample for sample in trial.of(arm) if sample.ended == EndReason.MEASURED] for arm in ("base", "new"))
    for kind, limit in ((HOST, allowed.host_mb), (DEVICE, allowed.device_mb)):
        if any(_known(read, base) and _known(read, new) for _, read in kind.peaks):
            yield _check(kind, limit, base, new, allowed.epoch_steps)


def _known(read: Callable[[Sample], float | None], samples: Iterable[Sample]) -> list[float]:
    return [value for sample in samples if (value := read(sample)) is not None]


def _check(kind: Kind, limit: float | None, base: Sequence[Sample], new: Sequence[Sample], epoch: int | None) -> Check:
    reports = []
    for what, read in kind.peaks:
        before, after = _known(read, base), _known(read, new)
        if before and after:
            most = max(before) + kind.margin_mb(max(before), base) if limit is None else limit
            if max(after) > most:
                return Check(name=kind.name, passed=False, why=_too_much(kind, what, max(before), max(after), most))
            reports.append(f"{max(after):,.0f} MB of at most {most:,.0f} MB")
    grows = _growth(kind, limit, base, new, epoch)
    if grows is not None:
        return Check(name=kind.name, passed=False, why=f"{kind.name}: {grows}")
    return Check(name=kind.name, passed=True, why=f"{reports[0]}, and does not keep growing")


def _too_much(kind: Kind, what: str, before: float, after: float, most: float) -> str:
    allow = f"to allow it: {kind.option} {after * 1.2:,.0f}M".replace(",", "")
    return (
        f"{kind.name}: {what} took {after:,.0f} MB where the baseline took {before:,.0f} MB, and at most "
        f"{most:,.0f} MB is allowed; {allow}"
    )


def _growth(
    kind: Kind, limit: float | None, base: Sequence[Sample], new: Sequence[Sample], epoch: int | None
) -> str | None:
    for sample, late in ((sample, late) for sample in new for late in (False, True)):
        series = _series(sample, kind, late)
        grown = _grown(series) - max((_grown(_series(other, kind, late)) for other in base), default=0.0)
        if grown < NOTICED_MB:
            continue
        steps = series[-1][0] - series[0][0]
        ahead = max(epoch or 0, AHEAD * steps)
        expected = grown / steps * ahead
        most = kind.margin_mb(series[0][1], base) if limit is None else limit - series[0][1]
        if expected > most:
            return (
                f"it grows by {grown:,.0f} MB in {steps:,} steps where the baseline's does not, which "
                f"makes {expected:,.0f} MB in {ahead:,}; at most {most:,.0f} MB is allowed"
            )
    return None


def _series(sample: Sample, kind: Kind, late: bool) -> Series:
    """Return the memory after warm-up, by step; with `late` only the second half, in which growth may begin."""
    state = sample.traces.state if sample.traces is not None else None
    weights = state.memory if state is not None else ()
    first = max(sample.warmup_steps, weights[-1].step // (2 if late else 8) if weights else 0)
    return [(weight.step, value) for weight in weights if weight.step >= first and (value := kind.at(weight))]


def _grown(series: Series) -> float:
    """Return the growth from the first quarter to the last, if each quarter is above the one before."""
    if len(series) < 2 * QUARTERS:
        return 0.0
    size = len(series) // QUARTERS
    levels = [median(value for _, value in series[number * size : (number + 1) * size]) for number in range(QUARTERS)]
    grown = levels[-1] - levels[0]
    rising = all(after - before >= EACH_QUARTER * grown for before, after in pairwise(levels))
    return grown * QUARTERS / (QUARTERS - 1) if grown > 0 and rising else 0.0
