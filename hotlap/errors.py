"""The exception tree and the exit codes.

HotlapError                  one clear line for the user, with its exit code
├── CommandNotFound          127  the command does not exist
├── CommandNotRunnable       126  it exists but may not be executed
├── NotPython                 65  the command ran, but hotlap could not enter any Python process of it
├── TorchUnusable             69  torch is missing from that interpreter, or too old
├── NoStep                    66  the command ended before its first training step
├── NeverStepped              75  no training step within --max-seconds
├── RunFolderUnwritable       73  results cannot be saved
├── RunNotFound               72  the requested run or result does not exist
├── RecordUnreadable          74  a saved record is damaged or from a newer hotlap
├── UnknownName                2  no workload, arm or rule of that name
├── NoDevice                  67  --device cuda where torch sees no GPU
├── PackageMissing            68  an optional package is missing; the line says what to install
├── NotEnoughRoom             71  there is too little disk space or memory for the request
├── DataNotMade               76  the generator of a workload's data failed
├── ResumeRefused             78  the result to resume was measured under other conditions
├── ScanRefused                2  no such path; settings or a baseline that cannot be read; a file that is not writable
├── UnknownOptimization        2  no entry of that name or code, a value it does not take, or two entries that conflict
├── PlanUnusable              79  a plan file that is missing, damaged, from a newer hotlap, or names an unknown entry
├── CannotRunTwice            80  the command ran once, but fails when it runs again, beside or after itself
├── TooShort                  81  the command ends after too few steps to measure, or after a different number each time
├── BudgetTooSmall            82  the budget is less than the first trial takes
├── MetricNeverSeen           83  the requested metric never appeared
├── BaselineUnusable          84  the unmodified command fails, hangs, or has a loss that is not finite
└── NotComparable             85  the two sides cannot be compared, or a revision does not exist

Besides these: 0 success, 1 an error of the command or of the system, 2 wrong usage, 70 a bug in hotlap, 130 Ctrl-C.
A command that fails on its own keeps its exit code.
"""

from __future__ import annotations


class HotlapError(Exception):
    """One line that says what happened, with which value, and what to type next."""

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
