"""The end of a training: what was handed over is written, and threads end, also after an error."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hotlap.engine.checkpoints import Writer
from hotlap.engine.errors import CheckpointNotWritten
from hotlap.engine.run import Run

Say = Callable[[str], None]


def close(run: Run) -> None:
    """Close the run; an error that is under way is still the one raised."""
    under_way = sys.exc_info()[1]
    try:
        run.close()
        _close_log(run)
    finally:
        if run.writer is not None:
            _close_writer(run.writer, under_way, run.parts.say)


def _close_writer(writer: Writer, under_way: BaseException | None, say: Say) -> None:
    try:
        writer.close()
    except CheckpointNotWritten as error:
        if under_way is None:
            raise
        say(str(error))


def _close_log(run: Run) -> None:
    parts = run.parts
    parts.log.close()
    training = sum(record.seconds for record in run.place.epochs[run.epochs_before :])
    lines = parts.callbacks.slow(training) if training else []
    if parts.log.dropped:
        lines.append(f"the log could not keep up: {parts.log.dropped} records were dropped")
    if parts.log.failed:
        lines.append(parts.log.failed)
    for line in lines:
        parts.say(line)
