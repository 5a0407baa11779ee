"""The rows of a bench as text, for the terminal and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median

from hotlap.bench.record import Bench, Row
from hotlap.judge.ratio import EPOCHS, NOTHING, Ratio
from hotlap.records.figures import NONE, number

HEADINGS = (
    "workload", "arm", "samples/s", "× naive [95 %]", "s to target", "quality (mean)", "target", "host MiB",
    "device MiB", "warm-up s",
)  # fmt: skip


def cells(row: Row) -> tuple[str, ...]:
    if not row.trained:
        return (row.workload, row.arm, "broken", *[NONE] * (len(HEADINGS) - 3))
    return (
        row.workload,
        row.arm + (f" ({row.trained} of {row.runs} runs)" if row.trained < row.runs else ""),
        number(row.samples_per_second) + ("*" if row.single_epoch else ""),
        ratio_text(row),
        to_target(row),
        quality(row),
        target(row),
        number(row.peak_host_mb),
        number(row.peak_device_mb),
        number(row.warmup_seconds),
    )


def ratio_text(row: Row) -> str:
    if row.ratio is None:
        return "1" if row.arm == "naive" else NONE
    if row.ratio.low is None or row.ratio.high is None:
        return f"{digits(row.ratio.value)} [one sample]"
    return f"{digits(row.ratio.value)} [{digits(row.ratio.low)}, {digits(row.ratio.high)}]"


def digits(value: float) -> str:
    """Format with three significant digits: 0.912, 3.04, 46.1, 120."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}"


def to_target(row: Row) -> str:
    times, missed = row.seconds_to_target, row.trained - len(row.seconds_to_target)
    if not times:
        return f"not reached in {missed} of {row.trained}"
    text = number(median(times))
    if len(times) > 1:
        text += f" [{number(min(times))}, {number(max(times))}]"
    return text + (f", not reached in {missed} of {row.trained}" if missed else "")


def quality(row: Row) -> str:
    listed = ", ".join(f"{value:.4f}" for value in row.qualities)
    return f"{listed} ({mean(row.qualities):.4f})" if len(row.qualities) > 1 else listed


def target(row: Row) -> str:
    outcome = "reached" if row.reached == row.trained else f"missed in {row.trained - row.reached} of {row.trained}"
    return f"{row.metric} {row.target:g} {outcome}"


def notes(bench: Bench) -> list[str]:
    """Return what a reader must know to interpret the figures."""
    rows = bench.summary
    lines = [
        "samples/s: steady state, all epochs after the first of each run; [ ]: 95 % interval of the ratio, "
        "range of the seconds to target.",
        f"Host memory is the peak of the arm and its workers together, as {bench.host_memory}; device memory is what "
        "the whole device held more than before.",
    ]
    if any(row.single_epoch for row in rows):
        lines.append("* one epoch only: its warm-up is in the figure.")
    if _any_ratio(rows, EPOCHS):
        lines.append(
            "Fewer than three runs an arm: the intervals come from epochs and hardly see the spread between runs."
        )
    if _any_ratio(rows, NOTHING):
        lines.append("[one sample]: a single epoch has no interval.")
    return lines


def _any_ratio(rows: Sequence[Row], resampled: str) -> bool:
    ratios: list[Ratio] = [row.ratio for row in rows if row.ratio is not None]
    return any(ratio.resampled == resampled for ratio in ratios)


def broken(bench: Bench) -> list[str]:
    return [f"{row.workload} {row.arm}, {why}" for row in bench.summary for why in row.broken]


def settings(bench: Bench) -> list[str]:
    """Return the settings that the frameworks chose."""
    return [f"{row.workload} {row.arm}: {row.settings}" for row in bench.summary if row.settings]
