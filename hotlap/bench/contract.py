"""The lines that an arm prints:

    train 800 samples  valid 200 samples
    settings precision=bf16-mixed compile=no        (frameworks only)
    epoch 3  loss 0.01234  rmse 0.0456  seconds 1.234
    final rmse 0.0456 target 0.0500 reached

`seconds` is the training part of the epoch. Other lines are saved as they are and ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hotlap.bench.record import Line

TRAIN = re.compile(r"train (\d+) samples\b.*")
SETTINGS = re.compile(r"settings (.+)")
EPOCH = re.compile(r"epoch (\d+)((?:\s+\S+\s+\S+)*)\s*")
FINAL = re.compile(r"final (\S+) (\S+) target (\S+) (reached|missed)\s*")


class Unreadable(ValueError):
    """The output breaks the contract; the message says where."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    number: int
    at: float  # when its line arrived, in seconds since the start of the process
    seconds: float  # of training
    metric: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """What one run reported."""

    samples: int
    settings: str | None
    epochs: tuple[Epoch, ...]
    metric: str
    final: float
    target: float
    reached: bool


def read(lines: Sequence[Line]) -> RunReport:
    samples = _only(lines, TRAIN, "train N samples")
    final = _only(lines, FINAL, "final METRIC VALUE target TARGET reached|missed")
    settings = next((found[1] for line in lines if (found := SETTINGS.fullmatch(line.text))), None)
    epochs = tuple(_epoch(line, found, final[1]) for line in lines if (found := EPOCH.fullmatch(line.text)))
    if not epochs:
        raise Unreadable("it printed no lines `epoch N …`")
    if int(samples[1]) == 0:
        raise Unreadable("it trained on 0 samples")
    return RunReport(
        samples=int(samples[1]),
        settings=settings,
        epochs=epochs,
        metric=final[1],
        final=_number(final[2], "the final quality"),
        target=_number(final[3], "the target"),
        reached=final[4] == "reached",
    )


def last_epoch(lines: Sequence[Line]) -> int:
    """Return the number of the last finished epoch, to show progress."""
    found = (EPOCH.fullmatch(line.text) for line in reversed(lines))
    return next((int(match[1]) for match in found if match), 0)


def _only(lines: Sequence[Line], pattern: re.Pattern[str], shape: str) -> re.Match[str]:
    found = [match for line in lines if (match := pattern.fullmatch(line.text))]
    if len(found) != 1:
        raise Unreadable(f"it printed {len(found) or 'no'} lines `{shape}`, expected one")
    return found[0]


def _epoch(line: Line, found: re.Match[str], metric: str) -> Epoch:
    words = found[2].split()
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    missing = [name for name in ("seconds", metric) if name not in pairs]
    if missing:
        raise Unreadable(f"no {missing[0]} in the line {line.text!r}")
    seconds = _number(pairs["seconds"], f"seconds of epoch {found[1]}")
    if not (math.isfinite(seconds) and seconds > 0):
        raise Unreadable(f"an epoch of {pairs['seconds']} seconds in the line {line.text!r}")
    return Epoch(
        number=int(found[1]),
        at=line.at,
        seconds=seconds,
        metric=_number(pairs[metric], f"{metric} of epoch {found[1]}"),
    )


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Unreadable(f"{what} is {text!r}, which is not a number") from None
