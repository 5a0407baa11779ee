"""The exception tree and the exit codes.

HotlapError                  one clear line for the user, and the exit code that goes with it
├── CommandNotFound          127  the command does not exist
├── CommandNotRunnable       126  it exists but may not be executed
├── NotPython                 65  it ran, but no Python of it could be entered
├── TorchUnusable             69  torch is missing or too old in that interpreter
├── NoStep                    66  the command ended before its first training step
├── NeverStepped              75  no training step within --max-seconds
├── RunFolderUnwritable       73  results cannot be kept
├── RunNotFound               72  a kept run or result that was asked for is not there
├── RecordUnreadable          74  a saved record is damaged or from a newer hotlap
├── UnknownName                2  no workload or arm of that name
├── NoDevice                  67  --device cuda where torch sees no GPU
├── PackageMissing            68  an optional package is needed; the line says what to install
├── NotEnoughRoom             71  the disk or the memory is too small for what was asked
├── DataNotMade               76  the generator of a workload's data failed
├── ResumeRefused             78  the result to go on with was measured under other conditions
├── ScanRefused                2  no such path; settings or a baseline that cannot be read; a file not to be written
├── UnknownOptimization        2  no entry of that name or code, a value it does not take, or two that conflict
├── PlanUnusable              79  a plan file that is damaged, from a newer hotlap, or names what is not there
├── CannotRunTwice            80  the command ran once, but not again beside or after itself
├── TooShort                  81  the command ends after too few steps to measure, or after another number each time
├── BudgetTooSmall            82  the time given to a tune is less than its first trial takes
├── MetricNeverSeen           83  the measure of quality that was asked for never came
├── BaselineUnusable          84  the command by itself fails, hangs, or has a loss that is not finite
└── NotComparable             85  two things that cannot be compared, or a revision that is not there

Besides these: 0 done, 1 an error of the command itself or of the system, 2 wrong usage, 70 a bug of ours, 130 Ctrl-C.
A command that fails by itself keeps its own exit code.
"""

from __future__ import annotations


class HotlapError(Exception):
    """What happened, with which value, and what to type next, in one line."""

    exit_code = 1
    died_by: int | None = None  # the signal that ended the command


class CommandNotFound(HotlapError):
    exit_code = 127


class CommandNotRunnable(HotlapError):
    exit_code = 126


class NotPython(HotlapError):
    exit_code = 65


class TorchUnusable(HotlapError):
    exit_code = 69


class NoStep(HotlapError):
    exit_code = 66


class NeverStepped(HotlapError):
    exit_code = 75


class RunFolderUnwritable(HotlapError):
    exit_code = 73


class RunNotFound(HotlapError):
    exit_code = 72


class RecordUnreadable(HotlapError):
    exit_code = 74


class UnknownName(HotlapError):
    exit_code = 2


class NoDevice(HotlapError):
    exit_code = 67


class PackageMissing(HotlapError):
    exit_code = 68


class NotEnoughRoom(HotlapError):
    exit_code = 71


class DataNotMade(HotlapError):
    exit_code = 76


class ResumeRefused(HotlapError):
    exit_code = 78


class UnknownOptimization(HotlapError):
    exit_code = 2


class PlanUnusable(HotlapError):
    exit_code = 79


class CannotRunTwice(HotlapError):
    exit_code = 80


class TooShort(HotlapError):
    exit_code = 81


class BudgetTooSmall(HotlapError):
    exit_code = 82


class MetricNeverSeen(HotlapError):
    exit_code = 83


class BaselineUnusable(HotlapError):
    exit_code = 84


class NotComparable(HotlapError):
    exit_code = 85


class ScanRefused(HotlapError):
    exit_code = 2


INTERNAL_ERROR = 70
INTERRUPTED = 130
