"""Make docs/claims.md from claims.toml and the results of claims.py.

`python benchmarks/claims/render_claims.py [--check]`

Reads results/<machine>/<date>-claims*.json. Of the machines with a GPU, and of those without, the one measured last is
shown; of its results the newest for each change. With --check nothing is written; the exit code is 1 when the page is
not what the results give.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import claims_book
import claims_record
from claims_book import CPU, CUDA, DEVICE_MEMORY, MEMORY, RECIPE, START, TRAINING, VALIDATION, Book, Claim
from claims_record import Claims, Figure

from hotlap.bench.markdown import escaped
from hotlap.judge.ratio import Ratio

HERE = Path(__file__).resolve().parents[1]
PAGE = HERE.parent / "docs" / "claims.md"
RESULTS = "*/*-claims*.json"
NEXT_TO_NOTHING = 0.05  # for a claim of hardly any gain: an interval that reaches further says nothing
LONGER = 1.5  # a first epoch is shown separately if it is longer by this factor

HEAD = """# What the five reports claim, and what was measured

Made by `python benchmarks/claims/render_claims.py` from [claims.toml](../benchmarks/claims/claims.toml) and the raw
results named below; do not edit.

Every gain is a factor, before / after: seconds per sample, seconds, or MiB without the change over the same with it, so
1.00 is no gain and below 1 is a loss. *faster by x %* in a report counts as 1 + x, the smaller reading, unless it shows
seconds. Each change was made alone to `naive.py` of the bundled workload and trained along with the unchanged
`naive.py` (`python benchmarks/claims/claims.py`), each in a process of its own, in one of two ways:

- *one by one*: the processes run one after another, interleaved, twice each. [a, b] is the 95 % interval, from how much
  two runs of the same program differ, pooled over all programs of a result.
- *in rounds*, where the command below says `--rounds`: the processes are started together and train their first epoch
  side by side, which is not measured. Then they take turns: one trains one epoch while all others wait, so that a
  machine that is slower for a minute is slower for all. The factor is the mean of those of the rounds, and [a, b] comes
  from how much the rounds differ. `naive.py` runs twice, and *naive against itself* should be 1.00: a deviation beyond
  what its rounds explain is the luck of a process, and widens every [a, b] of that result. Whatever is tuned by timing
  in the first epoch (cuDNN's autotuner, `max-autotune`) is tuned while the others run. Start-up, a first epoch and
  host memory need processes that start alone, so they are always measured one by one.

What *gain in* means:

| gain in | what was measured |
| --- | --- |
| training | seconds of training per sample, every epoch but the first of each run |
| validation | seconds of validation in an epoch |
| start-up | from the start of the process to the first epoch, imports included |
| memory | peak of all processes of the run; on a GPU the most that torch had reserved there, without the CUDA context |
| recipe | a changed hyper-parameter: a different training, not a gain of speed, whatever the clock says |

A gain in validation, in start-up or by a different recipe is not a gain in training, and they do not add up.

The words after a figure judge its interval. *as claimed*: it meets the claimed range and not 1.00, or, where hardly any
gain is claimed, it is near; *too uncertain*: it meets both, or reaches far; *no gain shown*: it meets 1.00 only. Where
a report speaks of a part, the whole was measured, and only gain or loss is stated. One interval in twenty misses by
chance, and there are many here. *why* is our explanation: reasoned from the code, not measured by itself.
"""
GAINS = {TRAINING: "training", VALIDATION: "validation", START: "start-up", MEMORY: "memory", RECIPE: "recipe"}
DEVICES = {CUDA: "GPU", CPU: "CPU"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """The machine shown for one device, with its results, newest first."""

    device: str
    results: tuple[tuple[Path, Claims], ...]

    @property
    def heading(self) -> str:
        if not self.results:
            return DEVICES[self.device]
        machine = self.results[0][1].machine
        where = machine.gpu if self.device == CUDA else f"{machine.cores} CPU cores"
        return f"{where}, size {' and '.join(dict.fromkeys(record.size for _, record in self.results))}"

    def figure(self, claim: Claim, book: Book) -> Figure | None:
        """Return the newest figure; its first epoch is from the newest result in which processes start alone."""
        all_of_them = (claims_record.figure(record, claim, book) for _, record in self.results)
        found = [figure for figure in all_of_them if figure is not None]
        firsts = [figure.first_epoch for figure in found if figure.first_epoch and not figure.stale]
        return replace(found[0], first_epoch=firsts[0] if firsts else None) if found else None


def columns(folder: Path) -> list[Column]:
    records = [(path, claims_record.load(path)) for path in sorted((folder / "results").glob(RESULTS))]
    return [_column(records, device) for device in DEVICES]


def _column(records: Sequence[tuple[Path, Claims]], device: str) -> Column:
    own = sorted((pair for pair in records if pair[1].device == device), key=lambda pair: pair[1].date, reverse=True)
    return Column(device=device, results=tuple(pair for pair in own if pair[0].parent == own[0][0].parent))


def page(folder: Path, book: Book) -> str:
    """Return the whole page for the results in folder/results."""
    shown = columns(folder)
    parts = [HEAD, _sources(shown)]
    for number, title in book.reports.items():
        claims = [claim for claim in book.claims if claim.report == number]
        parts += [f"## {title}\n", f"{book.does_not_follow[number].strip()}\n", _table(claims, shown, book)]
    return "\n".join(parts)


def _sources(shown: Sequence[Column]) -> str:
    lines = []
    for column in shown:
        lines += [_source(path, record) for path, record in column.results]
        if not column.results:
            lines.append(f"- {DEVICES[column.device]}: not measured yet")
    return "\n".join(lines) + "\n"


def _source(path: Path, record: Claims) -> str:
    machine = record.machine
    where = f"{machine.gpu}, " if machine.gpu else ""
    variables = "".join(f"{name}={value} " for name, value in record.environment.items())
    link = f"[{path.name}](../benchmarks/results/{path.parent.name}/{path.name})"
    what = f"torch {machine.torch}, Python {machine.python}, {record.date}, `{variables}{record.command}`"
    return f"- {where}{machine.cores} cores of {machine.cpu}, {what}. {_controls(record)}Raw: {link}"


def _controls(record: Claims) -> str:
    found = [f"{workload} {_figure(ratio)}" for workload, ratio in claims_record.controls(record)]
    return f"Naive against itself: {', '.join(found)}. " if found else ""


def _table(claims: Sequence[Claim], shown: Sequence[Column], book: Book) -> str:
    headings = ("change", "the report says", "gain in", "as a factor", *(column.heading for column in shown), "why")
    lines = [headings, ("---",) * len(headings), *(_row(claim, shown, book) for claim in claims)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _row(claim: Claim, shown: Sequence[Column], book: Book) -> tuple[str, ...]:
    cells = [cell(claim, column, book) for column in shown]
    waits = claim.measured_by and not any(column.figure(claim, book) for column in shown)
    why = f"expected: {claim.why}" if waits else claim.why
    words = (claim.change, claim.says, GAINS[claim.kind], _claimed(claim), *cells, why)
    return tuple(escaped(word) for word in words)


def _claimed(claim: Claim) -> str:
    if claim.factor is None:
        return "no figure"
    low, high = (f"{value:.2f}" for value in claim.factor)
    return (low if low == high else f"{low}–{high}") + (f" of {claim.part}" if claim.part else "")


def cell(claim: Claim, column: Column, book: Book) -> str:
    """Return the cell of one claim in one column."""
    if claim.measured_by is None:
        return f"not measured: {claim.not_measured}"
    not_on = book.changes[claim.measured_by].not_on
    if column.device in not_on:
        return f"not measured: {not_on[column.device]}"
    if claim.measure == DEVICE_MEMORY and column.device == CPU:
        return "not measured: it concerns the memory of a GPU"
    found = column.figure(claim, book)
    if found is None:
        return "not measured yet"
    return "; ".join(_words(found, claim))


def _words(found: Figure, claim: Claim) -> Iterator[str]:
    if found.stale:
        yield "measured with another change than claims.toml has now: measure again"
        return
    if found.ratio:
        yield f"{_figure(found.ratio)} {verdict(found.ratio, claim)}"
    if found.first_epoch and found.first_epoch[1] > LONGER * found.first_epoch[0]:
        before, after = found.first_epoch
        yield f"first epoch {before:.3g} → {after:.3g} s"
    if found.broken:
        yield f"broke: {found.broken}"


def _figure(value: Ratio) -> str:
    digits = 2 if value.value < 10 else 1
    if value.low is None or value.high is None:
        return f"{value.value:.{digits}f}"
    return f"{value.value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def verdict(value: Ratio, claim: Claim) -> str:
    """Return what the interval says about the claim."""
    if value.low is None or value.high is None:
        return "too few samples to judge"
    if claim.kind == RECIPE:
        return "other training"
    meets_one = value.low <= 1 <= value.high
    if claim.factor is None or claim.part:
        return "no gain shown" if meets_one else "a gain" if value.low > 1 else "a loss"
    low, high = claim.factor
    if value.low <= high and value.high >= low:
        near = low - NEXT_TO_NOTHING <= value.low and value.high <= high + NEXT_TO_NOTHING
        is_claimed = near if low <= 1 <= high else not meets_one
        return "as claimed" if is_claimed else "too uncertain"
    if high < 1:
        return "less loss than claimed" if value.low > high else "more loss than claimed"
    if value.low > high:
        return "more than claimed"
    return "no gain shown" if meets_one else "a loss" if value.high < 1 else "less than claimed"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; compare only")
    text = page(HERE, claims_book.read())
    if not parser.parse_args(arguments).check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
    if not same:
        print("docs/claims.md is out of date; type: python benchmarks/claims/render_claims.py", file=sys.stderr)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
