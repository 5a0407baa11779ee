"""What a training logs, where it goes, and that no sink or callback can hold it up unnoticed."""

from __future__ import annotations

import json
import math
import threading
import time

import numpy as np
import pytest
import torch

from hotlap.engine import RMSE, EpochRecord, JsonLines, StepRecord, TensorBoard
from hotlap.engine import log as logs
from tests.engine.training import fitted, outcome, same


def test_writes_records_as_json_lines(tmp_path):
    path = tmp_path / "logs" / "training.jsonl"
    _, history = fitted(sinks=[JsonLines(path)], log_every=2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [line["loss"] for line in epochs] == [record.loss for record in history.epochs]
    assert epochs[0]["scores"] == history.epochs[0].scores
    steps = [line["step"] for line in lines if line["kind"] == "step"]
    assert steps == sorted(steps)
    assert len(steps) >= 3


def test_a_non_finite_loss_is_null_in_json(tmp_path):
    sink = JsonLines(tmp_path / "training.jsonl")
    sink.write(StepRecord(1, 1, math.nan, {"a": -math.inf, "b": 2.0}))
    sink.close()
    line = json.loads(sink.path.read_text(), parse_constant=pytest.fail)
    assert (line["loss"], line["losses"]) == (None, {"a": None, "b": 2.0})


def test_tensorboard_gets_loss_parts_and_training_metrics():
    written = []

    class Writer:
        def add_scalar(self, name, value, step):
            written.append((name, value, step))

    sink = TensorBoard.__new__(TensorBoard)
    sink._writer = Writer()
    sink.write(StepRecord(1, 7, 3.0, {"a": 1.0, "b": 2.0}))
    assert written == [("step/loss", 3.0, 7), ("step/a", 1.0, 7), ("step/b", 2.0, 7)]
    sink.write(EpochRecord(1, 3.0, {"rmse": 0.5}, 1.0, 0.0, 0.0, 70, 8, 0.1, {"a": 1.0}, {"rmse": 0.25}))
    assert {("epoch/rmse", 0.5, 8), ("train/rmse", 0.25, 8), ("epoch/a", 1.0, 8)} <= set(written)


def test_tensorboard_gets_the_scores_of_every_epoch(tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    _, history = fitted(sinks=[TensorBoard(tmp_path)], epochs=2, train_metrics={"rmse": RMSE()})
    found = accumulators.EventAccumulator(str(tmp_path))
    found.Reload()
    assert [round(event.value, 4) for event in found.Scalars("epoch/rmse")] == [
        round(record.scores["rmse"], 4) for record in history.epochs
    ]
    assert len(found.Scalars("train/rmse")) == 2


def test_progress_comes_from_another_thread_at_a_bounded_rate(constants):
    constants(logs, SECONDS_BETWEEN_LINES=0.02)
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


@pytest.mark.parametrize("answer", [np.zeros(3), torch.zeros(2), np.array(["stop"] * 2), [1], True, "stopped"])
def test_what_a_callback_returns_besides_stop_is_ignored(answer):
    _, history = fitted(callbacks=[lambda record: answer])
    assert len(history.epochs) == 3


def test_a_failing_sink_is_disabled_and_training_continues():
    class Fails:
        def write(self, record):
            raise OSError("disk full")

        def close(self):
            pass

    said = []
    found = fitted(sinks=[Fails()], say=said.append)
    assert "Fails failed and was disabled: disk full" in said
    same(outcome(*found), outcome(*fitted()))


def test_a_slow_sink_loses_steps_not_time(constants):
    constants(logs, MOST_WAITING=1)

    class Slow:
        written = 0

        def write(self, record):
            time.sleep(0.03)
            self.written += 1

        def close(self):
            pass

    slow, said = Slow(), []
    fitted(sinks=[slow], log_every=1, say=said.append)
    assert any(line.startswith("the log could not keep up") for line in said)
    assert 3 <= slow.written < 15


def test_a_failing_progress_display_is_disabled_and_no_record_is_lost(constants, tmp_path):
    constants(logs, SECONDS_BETWEEN_LINES=0.0)
    calls, said = [], []

    def progress(line):
        calls.append(line)
        raise BrokenPipeError

    path = tmp_path / "training.jsonl"
    fitted(progress=progress, sinks=[JsonLines(path)], say=said.append, log_every=100)
    assert len(path.read_text().splitlines()) == 3
    assert said[-1] == "progress failed and was disabled: BrokenPipeError"
    assert len(calls) == 1


class Ends:
    """A sink that ends the log's thread, which only SystemExit can."""

    def write(self, record):
        raise SystemExit

    def close(self):
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_training_continues_when_the_log_thread_has_ended(constants):
    constants(logs, MOST_WAITING=1)
    said = []
    _, history = fitted(sinks=[Ends()], log_every=1, say=said.append)
    assert len(history.epochs) == 3
    assert any("the log's thread ended before the training" in line for line in said)


class Closes:
    def __init__(self, *, writes=True, closes=True):
        self.writes, self.closes, self.closed = writes, closes, 0

    def write(self, record):
        if not self.writes:
            raise OSError("disk full")

    def close(self):
        self.closed += 1
        if not self.closes:
            raise OSError("quota")


def test_every_sink_is_closed_even_if_another_fails():
    left_out, fails, fine = Closes(writes=False, closes=False), Closes(closes=False), Closes()
    log = logs.Log([left_out, fails, fine], None)
    log.start()
    log.put(StepRecord(1, 1, 0.5))
    log.close()
    assert [sink.closed for sink in (left_out, fails, fine)] == [1, 1, 1]
    assert log.failed == "Closes failed and was disabled: disk full; Closes failed while closing: quota"
