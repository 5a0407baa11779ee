"""The metric is found in a command's output."""

from __future__ import annotations

import io

from hotlap.process.output import Listener, Pattern


def test_the_metric_is_read_from_lines_and_progress_bars():
    found = Pattern("acc", r"acc: ([0-9.]+)", lambda: 7)
    listener = Listener(io.BufferedReader(io.BytesIO(b"epoch 1 acc: 0.5\r 20% acc: 0.7\nacc: x\nlast")), found.read)
    listener.wait(5.0)

    assert [(reading.step, reading.value) for reading in found.readings] == [(7, 0.5), (7, 0.7)]
    assert list(listener.last) == ["epoch 1 acc: 0.5", " 20% acc: 0.7", "acc: x", "last"]
