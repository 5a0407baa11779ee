"""oneDNN and threads on a CPU are changed only where the gain is clear, and restored afterwards."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from hotlap.engine import choice, processor
from hotlap.engine.errors import BadRecipe
from hotlap.engine.recipe import Checkpoints, Recipe
from tests.engine.training import Net, Rows, fitted, numbers, outcome, same

recipe = partial(Recipe, batch_size=16)
LONG = {"epochs": 21, "onednn": "auto"}  # 105 steps: worth a trial


def uses_onednn():
    return processor.present().onednn


def measured(monkeypatch, seconds_with, seconds_without):
    monkeypatch.setattr(choice, "_round", lambda *args: seconds_with if uses_onednn() else seconds_without)


def test_onednn_is_switched_off_where_that_is_clearly_faster_and_restored_at_the_end(monkeypatch):
    measured(monkeypatch, 0.02, 0.01)
    seen, said = [], []
    found = fitted(**LONG, say=said.append, callbacks=[lambda record: seen.append(uses_onednn())])
    assert found[1].mode == "eager without oneDNN"
    assert said[0].startswith("step: eager without oneDNN (eager 20 ms; eager without oneDNN 10 ms)")
    assert not any(seen)
    assert uses_onednn()
    assert found[1].last.loss < found[1].epochs[0].loss


def test_onednn_stays_on_where_switching_it_off_gains_little(monkeypatch):
    measured(monkeypatch, 0.01, 0.009)
    found = fitted(**LONG)
    assert found[1].mode == "eager"
    same(outcome(*found), outcome(*fitted(epochs=21)))


def test_convolutions_and_short_trainings_are_not_measured(monkeypatch):
    measured(monkeypatch, 0.02, 0.01)
    assert fitted(epochs=3, onednn="auto")[1].mode == "eager"
    images, targets = torch.randn(70, 1, 4, 4), numbers()[1]
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 1))
    data = Rows(images, targets)
    assert fitted(**LONG, model=model, train=data, valid=data)[1].mode == "eager"


def test_the_recipe_can_switch_onednn_off():
    seen = []
    fitted(onednn="off", callbacks=[lambda record: seen.append(uses_onednn())])
    assert seen == [False] * 3
    assert uses_onednn()


def test_one_thread_is_among_the_ways_to_try(monkeypatch, answering):
    answering(torch, get_num_threads=4)
    thread_counts = []
    monkeypatch.setattr(torch, "set_num_threads", thread_counts.append)
    ways = processor.ways_to_try(recipe(), Net(), torch.device("cpu"), 200)
    assert [way.words for way in ways] == ["", " without oneDNN", " on one thread", " on one thread without oneDNN"]
    assert len(processor.ways_to_try(recipe(threads=2), Net(), torch.device("cpu"), 200)) == 2
    processor.use(ways[2])
    processor.use(ways[0])
    assert thread_counts == [1]
    assert uses_onednn()
    with pytest.raises(BadRecipe, match="threads=0"):
        recipe(threads=0)


def test_a_resumed_run_keeps_its_way_of_computing(tmp_path, monkeypatch):
    measured(monkeypatch, 0.02, 0.01)
    fitted(**LONG, checkpoints=Checkpoints(tmp_path))
    monkeypatch.undo()
    _, history = fitted(epochs=22, onednn="auto", resume=True, checkpoints=Checkpoints(tmp_path))
    assert history.mode == "eager without oneDNN"
