"""Compilation by region: repeated blocks are compiled by themselves, and what trains is the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.engine import Checkpoints, choice
from hotlap.engine.choice import Mode
from hotlap.engine.regions import regions
from tests.engine.training import Cut, Net, cut_at, fitted, outcome, same

FIXED = {"threads": 1, "onednn": "off"}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, inputs):
        return inputs + self.inner(inputs).relu()


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 1)
        self.blocks = nn.Sequential(Block(), Block(), Block())

    def forward(self, inputs):
        return self.head(self.blocks(self.first(inputs)))


@pytest.fixture
def compiler(monkeypatch):
    """Stands in for the compiler: notes what it is given, and how often that is called."""
    seen = {"compiled": [], "calls": 0}

    def compiled(function, **options):
        seen["compiled"].append(function)

        def called(*given):
            seen["calls"] += 1
            return function(*given)

        return called

    monkeypatch.setattr(torch, "compile", compiled)
    return seen


def test_repeated_blocks_are_the_regions():
    assert [type(block) for block in regions(Deep())] == [Block] * 3
    assert regions(Net()) == []
    assert regions(nn.Sequential(nn.Sequential(Block(), Block()), nn.ReLU())) != []


def test_each_block_is_compiled_once_and_trains_the_same(compiler):
    said = []
    found = fitted(model=Deep, compile="regions", say=said.append, **FIXED)
    same(outcome(*found), outcome(*fitted(model=Deep, **FIXED)))
    assert len(compiler["compiled"]) == 3
    assert compiler["calls"] > 0
    assert any(line.startswith("step: compiled by region") for line in said)
    assert all("forward" not in vars(block) for block in found[0].model.blocks)


def test_a_model_without_regions_is_compiled_as_a_whole(compiler):
    said = []
    fitted(compile="regions", say=said.append, **FIXED)
    assert len(compiler["compiled"]) == 1
    assert any(line.startswith("step: compiled,") for line in said)


@pytest.mark.parametrize(("faster", "words"), [("regions", "compiled by region"), ("whole", "compiled")])
def test_the_faster_of_whole_and_regions_is_chosen_by_measurement(faster, words, compiler, monkeypatch, constants):
    constants(choice, COMPILE_PAYS_FROM=0.0)
    seconds = {False: 3.0, True: 3.0}

    def by_turns(attempts):
        for mode, (_, run) in attempts.runs.items():
            took = 1.0 if mode.compiled and mode.regions == (faster == "regions") else seconds[mode.regions]
            attempts.runs[mode] = (took, run)

    monkeypatch.setattr(choice.Attempts, "_by_turns", by_turns)
    _, history = fitted(model=Deep, compile="auto", **FIXED)
    assert history.mode.startswith(words)


def test_a_resumed_run_is_compiled_as_before(compiler, tmp_path):
    whole = fitted(model=Deep, compile="regions", log_every=1, **FIXED)
    with pytest.raises(Cut):
        fitted(model=Deep, compile="regions", log_every=1, callbacks=[cut_at(7)],
               checkpoints=Checkpoints(tmp_path, steps=1), **FIXED)  # fmt: skip
    resumed = fitted(model=Deep, compile="auto", log_every=1, checkpoints=Checkpoints(tmp_path), resume=True, **FIXED)
    same(outcome(*resumed), outcome(*whole))
    assert resumed[1].mode == whole[1].mode
    assert str(Mode(compiled=True, regions=True)) == "compiled by region"


@pytest.mark.thorough
def test_the_real_compiler_trains_the_same():
    found = fitted(model=Deep, compile="regions", **FIXED)
    plain = fitted(model=Deep, **FIXED)
    assert found[1].last.loss == pytest.approx(plain[1].last.loss, rel=1e-4)
