"""What a training tells, to whom, and that nobody can hold it up unnoticed."""

from __future__ import annotations

import json
import threading
import time

import pytest

from hotlap.engine import EpochRecord, JsonLines, StepRecord, TensorBoard
from hotlap.engine import log as logs
from tests.engine.training import fitted, outcome, same


def test_records_as_json_lines(tmp_path):
    path = tmp_path / "logs" / "training.jsonl"
    _, history = fitted(sinks=[JsonLines(path)], log_every=2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [line["loss"] for line in epochs] == [one.loss for one in history.epochs]
    assert epochs[0]["scores"] == history.epochs[0].scores
    steps = [line["step"] for line in lines if line["kind"] == "step"]
    assert steps == sorted(steps)
    assert len(steps) >= 3


def test_tensorboard(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    _, history = fitted(sinks=[TensorBoard(tmp_path)], epochs=2)
    found = accumulators.EventAccumulator(str(tmp_path))
    found.Reload()
    assert [round(one.value, 4) for one in found.Scalars("epoch/rmse")] == [
        round(one.scores["rmse"], 4) for one in history.epochs
    ]


def test_progress_comes_from_another_thread_at_a_bounded_rate(monkeypatch):
    monkeypatch.setattr(logs, "SECONDS_BETWEEN_LINES", 0.02)
    lines, threads = [], set()

    def progress(line):
        lines.append(line)
        threads.add(threading.current_thread().name)

    fitted(progress=progress, callbacks=[lambda record: time.sleep(0.05)], epochs=2)
    assert threads == {"hotlap-log"}
    assert "samples/s" in lines[-1]
    assert "step " in lines[-1]
    assert len(lines) < 30


def test_a_slow_callback_is_named_and_a_quick_one_is_not():
    said = []

    def dawdles(record):
        time.sleep(0.05)

    def hurries(record):
        pass

    fitted(callbacks=[dawdles, hurries], say=said.append)
    assert sum("callback dawdles held the training up" in line for line in said) == 1
    assert not any("hurries" in line for line in said)


def test_callbacks_see_steps_and_epochs_and_may_stop():
    seen = []

    def callback(record):
        seen.append(type(record))
        return "stop" if isinstance(record, EpochRecord) and record.epoch == 2 else None

    _, history = fitted(callbacks=[callback], log_every=1)
    assert len(history.epochs) == 2
    assert not history.stopped_early
    assert seen.count(EpochRecord) == 2
    assert seen.count(StepRecord) >= 6


def test_a_sink_that_fails_is_left_out_and_the_training_goes_on():
    class Fails:
        def write(self, record):
            raise OSError("disk full")

        def close(self):
            pass

    said = []
    found = fitted(sinks=[Fails()], say=said.append)
    assert "Fails failed and was left out: disk full" in said
    same(outcome(*found), outcome(*fitted()))


def test_a_sink_that_is_too_slow_loses_steps_not_time(monkeypatch):
    monkeypatch.setattr(logs, "MOST_WAITING", 1)

    class Slow:
        written = 0

        def write(self, record):
            time.sleep(0.03)
            self.written += 1

        def close(self):
            pass

    slow, said = Slow(), []
    fitted(sinks=[slow], log_every=1, say=said.append)
    assert any(line.startswith("the log could not follow") for line in said)
    assert 3 <= slow.written < 15
