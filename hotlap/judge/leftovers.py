"""The gate for what piles up: threads and temporary files, of which a change may leave only a few more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hotlap.records.traces import Temporary
from hotlap.records.trial import EndReason, Sample, Trial
from hotlap.records.verdict import Check

MORE_THREADS = 16  # those of a reader or of a pool
MORE_FILES, MORE_MB = 16, 64.0  # locks, sockets, and a compiled kernel


def leftover_checks(trial: Trial) -> Iterator[Check]:
    base, new = ([sample for sample in trial.of(arm) if sample.ended == EndReason.MEASURED] for arm in ("base", "new"))
    yield from _check("threads", "threads", _threads, MORE_THREADS, base, new)
    yield from _check("temporary files", "temporary files", _files, MORE_FILES, base, new)
    yield from _check("size of temporary files", "MB of temporary files", _mb, MORE_MB, base, new)


def _check(
    name: str,
    unit: str,
    read: Callable[[Sample], float | None],
    more: float,
    base: Sequence[Sample],
    new: Sequence[Sample],
) -> Iterator[Check]:
    before, after = ([value for sample in arm if (value := read(sample)) is not None] for arm in (base, new))
    if not before or not after:
        return
    most = max(before) + more
    if max(after) > most:
        why = f"{name}: {max(after):,.0f} {unit} are left where the baseline leaves {max(before):,.0f}"
        yield Check(name=name, passed=False, why=f"{why}; at most {most:,.0f} are allowed")
    else:
        yield Check(name=name, passed=True, why=f"{max(after):,.0f} of at most {most:,.0f}")


def _threads(sample: Sample) -> float | None:
    state = sample.traces.state if sample.traces is not None else None
    return state.threads if state is not None else None


def _temporary(sample: Sample) -> Temporary | None:
    return sample.traces.temporary if sample.traces is not None else None


def _files(sample: Sample) -> float | None:
    found = _temporary(sample)
    return found.files if found is not None else None


def _mb(sample: Sample) -> float | None:
    found = _temporary(sample)
    return found.mb if found is not None else None
