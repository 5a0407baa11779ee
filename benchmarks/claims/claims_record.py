"""What benchmarks/claims/claims.py keeps, and the figures drawn from it. Times are in seconds, memory in MiB.

The changes of one workload are measured in blocks: naive and a few changes, run A B C, then C B A. A change is compared
with naive in its own block only, so a drift of the machine hits both alike; or with the change it is `against`.

Runs of one arm differ more than epochs of one run, and there are two of each. So the interval is Student's, from how
much runs of the same arm differ, pooled over all arms of the result: a dozen pairs tell what one pair cannot.

Measured in rounds, each arm is one process and naive is two. In round i the logarithm of naive's seconds over the
change's is taken, naive's being the mean of its two, which halves their noise; the factor is the mean over the rounds.
Its variance has two parts: that of the mean, from how much the rounds differ, and what no number of rounds shows, the
luck of a process as a whole. The second is what the two naive of a block differ more than their rounds explain, pooled
over all blocks; half of it is one process's. The degrees of freedom are Welch's and Satterthwaite's. Memory of the
device is one figure a process and no matter of the clock: its interval has the second part only, and is a point where
the two naive of every block reserved the same.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, variance

from claims_book import DEVICE_MEMORY, HOST_MEMORY, STARTUP, TRAINING, Book, Change, Claim

from hotlap.bench import contract
from hotlap.bench.record import TRAINED, Run
from hotlap.bench.summary import steady
from hotlap.errors import RecordUnreadable
from hotlap.judge.power import Spread, band, spread_of, student
from hotlap.judge.ratio import EPOCHS, NOTHING, RUNS, Ratio, Work, throughput
from hotlap.records.codec import from_json, to_json
from hotlap.records.observation import Machine

BENCHMARK = "claims"
NAIVE, NAIVE_AGAIN = "naive", "naive again"
NAIVES = (NAIVE, NAIVE_AGAIN)  # the second in rounds only
ONE_BY_ONE, ROUNDS = "one by one", "rounds"
ALONE = (STARTUP, HOST_MEMORY)  # measured where processes start alone, so not in rounds
LOST = re.compile(r"\bloss (nan|-?inf)\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    block: int
    run: Run  # its arm is naive or the name of a change


@dataclass(frozen=True, kw_only=True, slots=True)
class Claims:
    schema: int
    benchmark: str
    date: str
    command: str
    machine: Machine
    versions: Mapping[str, str]
    environment: Mapping[str, str]  # variables that decide how fast torch is
    device: str
    size: str
    repeats: int
    epochs: Mapping[str, int]  # by workload
    host_memory: str  # "PSS", where shared pages count once, or "RSS"
    sources: Mapping[str, str]  # by workload: of naive.py and what it imports
    changes: Mapping[str, str]  # name → fingerprint of what was run
    blocks: tuple[tuple[str, ...], ...]  # names of changes
    taken: tuple[Taken, ...]
    method: str = ONE_BY_ONE  # or ROUNDS

    def plus(self, taken: Taken) -> Claims:
        """Return the record with this run, in place of an earlier one of the same arm and seed."""
        retained = [
            earlier for earlier in self.taken if (earlier.block, earlier.run.key) != (taken.block, taken.run.key)
        ]
        return replace(self, taken=(*retained, taken))

    def block_of(self, change: str) -> int | None:
        return next((number for number, names in enumerate(self.blocks) if change in names), None)

    def runs(self, block: int, arm: str) -> list[Run]:
        found = [taken.run for taken in self.taken if (taken.block, taken.run.arm) == (block, arm)]
        return sorted(found, key=lambda run: run.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """What was measured for one claim."""

    ratio: Ratio | None  # before / after; above 1 is a gain
    first_epoch: tuple[float, float] | None  # seconds of naive and of the change, in the first run of each
    broken: str | None
    stale: bool  # claims.toml says another change now


def save(record: Claims, path: Path) -> None:
    """Save atomically, so that after a crash all finished runs are there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft.write_text(to_json(record), encoding="utf-8")
    draft.replace(path)


def load(path: Path) -> Claims:
    record = from_json(Claims, path.read_text(encoding="utf-8"), path.name)
    if record.benchmark != BENCHMARK:
        raise RecordUnreadable(f"{path.name} is a result of {record.benchmark!r}, not of claims")
    return record


def works(run: Run, measure: str) -> list[Work]:
    """Return the units of one run: its epochs but the first, or the run as a whole."""
    if measure == TRAINING:
        return steady(contract.read(run.lines))
    if measure == STARTUP:
        return [Work(samples=1, seconds=line.at) for line in run.lines if contract.TRAIN.fullmatch(line.text)]
    if measure == HOST_MEMORY:
        return [Work(samples=1, seconds=run.peak_host_mb)] if run.peak_host_mb else []
    if measure == DEVICE_MEMORY:
        return [Work(samples=1, seconds=peak) for peak in _printed(run, "device_mb")]
    printed = _printed(run, measure)
    return [Work(samples=1, seconds=seconds) for seconds in printed[1:] or printed]


def _printed(run: Run, name: str) -> list[float]:
    return [float(found[1]) for line in run.lines if (found := re.search(rf"\b{name} (\S+)", line.text))]


def figure(record: Claims, claim: Claim, book: Book) -> Figure | None:
    """Return the figure of one claim, or None if its change was not run."""
    change = book.changes[claim.measured_by or ""]
    block = record.block_of(change.name)
    in_rounds = record.method == ROUNDS
    if block is None or not record.runs(block, change.name) or (in_rounds and claim.measure in ALONE):
        return None
    naive, changed = _bases(record, block, change), record.runs(block, change.name)
    broken = [run.why or run.ended for run in (*naive, *changed) if run.ended != TRAINED]
    broken += [f"the loss became {lost}" for run in changed if (lost := _lost(run))]
    before, after = (_arm(runs, claim.measure) for runs in (naive, changed))
    if change.undone:
        before, after = after, before
    timed = claim.measure == TRAINING and not change.undone and not in_rounds
    ratio = _ratio_in_rounds if in_rounds else _ratio
    return Figure(
        ratio=ratio(record, claim.measure, before, after) if before and after else None,
        first_epoch=_first_epochs(naive, changed) if timed else None,
        broken=broken[0] if broken else None,
        stale=record.changes.get(change.name) != book.fingerprint(change, record.device, record.size),
    )


def _bases(record: Claims, block: int, change: Change) -> list[Run]:
    arms = (change.against,) if change.against else NAIVES
    return [run for arm in arms for run in record.runs(block, arm)]


def spread(record: Claims, measure: str) -> Spread | None:
    """Return the spread between runs of the same arm; None if no arm has run twice."""
    arms = {(taken.block, taken.run.arm) for taken in record.taken}
    return spread_of([math.log(throughput([run])) for run in _arm(record.runs(*arm), measure)] for arm in sorted(arms))


def _ratio(record: Claims, measure: str, before: Sequence[list[Work]], after: Sequence[list[Work]]) -> Ratio:
    value = throughput(after) / throughput(before)
    found = spread(record, measure)
    if found is None:
        return Ratio(value=value, low=None, high=None, resampled=NOTHING)
    strays = math.exp(band(found, len(before), len(after)))
    return Ratio(value=value, low=value / strays, high=value * strays, resampled=RUNS)


def _ratio_in_rounds(record: Claims, measure: str, before: Sequence[list[Work]], after: Sequence[list[Work]]) -> Ratio:
    logs = _by_round(before, after)
    found = luck(record, measure)
    if found is None:
        return Ratio(value=math.exp(fmean(logs)), low=None, high=None, resampled=NOTHING)
    return _interval(logs, found, 1 / len(before) + 1 / len(after))


def luck(record: Claims, measure: str) -> Spread | None:
    """Return the spread between processes of one program beyond what rounds show; None without two naive in a block."""
    controls = [logs for _, logs in _controls(record, measure)]
    if not controls:
        return None
    beyond = fmean(fmean(logs) ** 2 - _of_mean(logs) for logs in controls)
    return Spread(deviation=math.sqrt(max(beyond, 0.0) / 2), freedom=len(controls))


def controls(record: Claims) -> list[tuple[str, Ratio]]:
    """Return naive against itself in training, per block: its workload, and the interval from its rounds alone."""
    certain = Spread(deviation=0.0, freedom=1)
    return [(workload, _interval(logs, certain, 0.0)) for workload, logs in _controls(record, TRAINING)]


def _controls(record: Claims, measure: str) -> list[tuple[str, list[float]]]:
    found = []
    for block in range(len(record.blocks)):
        first, second = (_arm(record.runs(block, arm), measure) for arm in NAIVES)
        if first and second:
            found.append((record.runs(block, NAIVE)[0].workload, _by_round(first, second)))
    return found


def _by_round(before: Sequence[list[Work]], after: Sequence[list[Work]]) -> list[float]:
    """Return the logarithm of before / after in each round; memory has one figure for all of them."""
    pairs = zip(_mean_logs(before), _mean_logs(after), strict=False)
    return [old - new for old, new in pairs]


def _mean_logs(arm: Sequence[list[Work]]) -> list[float]:
    return [fmean(math.log(unit.seconds / unit.samples) for unit in units) for units in zip(*arm, strict=False)]


def _interval(logs: Sequence[float], process: Spread, processes: float) -> Ratio:
    """Return the interval; the ratio's variance is `processes` times that of a process. Without any it is a point."""
    value = math.exp(fmean(logs))
    parts = [(_of_mean(logs), len(logs) - 1), (processes * process.deviation**2, process.freedom)]
    total = sum(part for part, _ in parts)
    if not total:
        return Ratio(value=value, low=value, high=value, resampled=EPOCHS)
    freedom = total**2 / sum(part**2 / known for part, known in parts if part)
    strays = math.exp(student(max(int(freedom), 1)) * math.sqrt(total))
    return Ratio(value=value, low=value / strays, high=value * strays, resampled=EPOCHS)


def _of_mean(logs: Sequence[float]) -> float:
    """Return the variance of the mean of the logarithms."""
    return variance(logs) / len(logs) if len(logs) > 1 else 0.0


def _arm(runs: Sequence[Run], measure: str) -> list[list[Work]]:
    units = [works(run, measure) for run in runs if run.ended == TRAINED]
    return [unit for unit in units if unit]


def _lost(run: Run) -> str | None:
    """Return what a training lost, or None: one that broke down is not a faster training."""
    return next((found[1] for line in run.lines if (found := LOST.search(line.text))), None)


def _first_epochs(naive: Sequence[Run], changed: Sequence[Run]) -> tuple[float, float] | None:
    """Return first epochs of the first run: later ones read what was compiled from torch's cache."""
    firsts = [
        [contract.read(run.lines).epochs[0].seconds for run in runs if run.ended == TRAINED][:1]
        for runs in (naive, changed)
    ]
    return (firsts[0][0], firsts[1][0]) if all(firsts) else None
