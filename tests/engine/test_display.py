"""What a training shows without being asked."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest

from hotlap.engine import Recipe, Trainer, log
from hotlap.engine.display import clock
from hotlap.engine.errors import BadRecipe
from tests.engine.regression import FEW, MSE, network, sgd


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, file, **options):
    monkeypatch.setattr(sys, "stderr", file)
    monkeypatch.setattr(log, "SECONDS_BETWEEN_LINES", 0.05)
    model = network()
    recipe = Recipe(batch_size=16, threads=1, onednn="on", log_every=1)
    Trainer(model, MSE, sgd(model), recipe, device="cpu", **options).fit(FEW, FEW, epochs=2)
    return file.getvalue()


def slow(model):
    time.sleep(0.3)
    return {"own": 0.5}


EPOCH = r"epoch %d  loss \d\.\d{5}  own 0\.5000  \d\.\d s  \d+ samples/s\n"


def test_a_terminal_shows_how_far_the_training_is(monkeypatch):
    text = shown(monkeypatch, Terminal(), evaluate=slow)
    assert re.search(r"\r\x1b\[Kepoch 1/2  step 4/4  loss \d\.\d{5}  \d+ samples/s", text)
    last = [part.rsplit("\x1b[K")[-1] for part in text.splitlines()]
    assert any(re.fullmatch(EPOCH % 2, line + "\n") for line in last)
    assert any(line.startswith("step: eager") for line in last)
    assert text.endswith(("\n", "\r\x1b[K")), "a changing line is cleared at the end"


def test_elsewhere_an_epoch_is_a_line(monkeypatch):
    text = shown(monkeypatch, io.StringIO(), evaluate=slow)
    assert "\r" not in text
    assert re.search(EPOCH % 1 + EPOCH % 2, text)


def test_a_program_that_reports_itself_is_left_to_it(monkeypatch):
    text = shown(monkeypatch, Terminal(), callbacks=[lambda record: None])
    assert "epoch" not in text
    assert "epoch 2" in shown(monkeypatch, io.StringIO(), callbacks=[lambda record: None], progress="lines")
    assert "epoch" not in shown(monkeypatch, Terminal(), progress=None)
    with pytest.raises(BadRecipe, match="progress='dots'"):
        shown(monkeypatch, Terminal(), progress="dots")


def test_the_time_left_is_a_clock():
    assert [clock(seconds) for seconds in (0.4, 61, 3725)] == ["0:00", "1:01", "1:02:05"]
    now = log.Progress()
    now.epoch, now.epochs, now.step, now.steps, now.rows, now.rows_ahead = 1, 2, 10, 40, 100, 400
    assert now.line(50.0) == "epoch 1/2  step 10/40  50 samples/s  0:06 left"
