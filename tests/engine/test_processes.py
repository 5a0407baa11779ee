"""Several processes train what one does, but for rounding; the trainings are in shared_trainings.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from once import made_once

from hotlap.engine import Checkpoints
from hotlap.engine.errors import BadRecipe, CheckpointDamaged
from tests.engine.shared_trainings import FEW, PROCESSES, SAME, SHARDED, Plain, alike, around, with_loss
from tests.engine.training import fitted, outcome, same

ROOT = Path(__file__).parents[2]


def launch(what, folder):
    command = [sys.executable, "-m", "tests.engine.forked_launches", str(folder), what]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    for rank in range(PROCESSES[what]):
        (folder / f"rank-{rank}.pt").rename(folder / f"{what}-{rank}.pt")


def launch_both(folder):
    """Four processes, and two that also continue what four began, in a copy that other tests do not need."""
    launch("four", folder)
    shutil.copytree(folder / "shards", folder / "shards-of-four")
    launch("together", folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made_once(tmp_path_factory, "several-processes", launch_both)


def found_by(what, folder):
    return [torch.load(folder / f"{what}-{rank}.pt", weights_only=False) for rank in range(PROCESSES[what])]


@pytest.fixture(scope="module")
def four(folder):
    return found_by("four", folder)


@pytest.fixture(scope="module")
def together(folder):
    return found_by("together", folder)


def close(first, second):
    tensors, scores = first
    others, other_scores = second
    for tensor, other in zip(tensors, others, strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-4, atol=1e-5)
    for (loss, *rest), (other_loss, *other_rest) in zip(scores, other_scores, strict=True):
        assert loss == pytest.approx(other_loss, rel=1e-4)
        *named, steps = rest
        *other_named, other_steps = other_rest
        assert steps == other_steps
        assert [pytest.approx(values, rel=1e-4) for values in named] == other_named


@pytest.mark.parametrize("name", SAME)
def test_several_processes_train_what_one_does(together, name):
    first, second = (found[name] for found in together)
    same(first, second)
    close(first, alike(SAME[name]()))


@pytest.mark.parametrize("name", [*(f"ddp {name}" for name in FEW), *(f"fsdp {name}" for name in SHARDED)])
def test_four_processes_with_whole_or_shared_out_weights_train_what_one_does(four, name):
    first, *others = (found[name] for found in four)
    for other in others:
        same(first, other)
    close(first, alike(SAME[name.split()[1]]()))


def test_shards_continue_to_the_bit_in_as_many_processes(four):
    for found in four:
        same(*found["resumed"])


def test_shards_of_four_processes_continue_in_two_and_in_one(together, folder):
    expected = alike({}, epochs=3)
    first, second = (found["continued"] for found in together)
    same(first, second)
    close(first, expected)
    kept = Checkpoints(folder / "shards-of-four")
    close(outcome(*fitted(model=Plain, epochs=3, resume=True, checkpoints=kept)), expected)
    assert len(list((folder / "shards").glob("shards-*"))) == 1


def test_a_loss_with_weights_trains_beside_shared_out_ones(four):
    for found in four:
        close(found["with loss"], with_loss(None))


def test_shared_out_weights_evaluate_and_predict(four):
    before, outputs = around(None)
    for found in four:
        scores, predicted = found["around"]
        assert scores == pytest.approx(before, rel=1e-4)
        torch.testing.assert_close(predicted, outputs, rtol=1e-4, atol=1e-5)


def test_what_shared_out_weights_cannot_do_is_refused_in_every_process(four):
    for found in four:
        export, rates, compiled, laid_out, broken = found["refused"]
        assert "resume the last checkpoint in one process, and export there" in export
        assert "try learning rates in one process" in rates
        assert "a step over weights that are shared out is not compiled" in compiled
        assert "channels_last" in laid_out
        assert "the loss is nan at step 1" in broken


def cut_short(path):
    path.write_bytes(path.read_bytes()[:900])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [Path.unlink, cut_short, flip_a_bit])
def test_damaged_shards_are_refused(four, folder, tmp_path, damage):
    kept = tmp_path / "kept"
    shutil.copytree(folder / "resumed-shards", kept)
    damage(next(kept.glob("shards-*/__1_0.distcp")))
    with pytest.raises(CheckpointDamaged, match=r"shards-\d+ cannot be read: .*; the last good one is .*best"):
        fitted(model=Plain, epochs=4, resume=True, ema=0.9, checkpoints=Checkpoints(kept, best=2))


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(together):
    for found in together:
        same(*found["resumed"])


def test_one_process_continues_what_several_began(together, folder):
    kept = Checkpoints(folder / "handed-on")
    close(outcome(*fitted(model=Plain, epochs=3, resume=True, checkpoints=kept)), alike({}, epochs=3))


def test_callbacks_are_called_in_the_first_process_and_stop_all(together):
    (epochs, called), (other_epochs, other_called) = (found["stopped"] for found in together)
    assert (epochs, other_epochs) == (1, 1)
    assert called > 0
    assert other_called == 0


def test_only_the_first_process_says_anything_and_writes_to_sinks(together, folder):
    said, nothing = (found["logged"] for found in together)
    assert [line.split()[:2] for line in said if line.startswith("epoch")] == [["epoch", "1"], ["epoch", "2"]]
    assert any(line.startswith("step: ") for line in said)
    assert nothing == []
    assert [json.loads(line)["epoch"] for line in (folder / "log.jsonl").read_text().splitlines()] == [1, 2]


def test_processes_send_each_other_one_message_a_step(together):
    """Beside it one at first, one for the scores of an epoch, and one for signals."""
    for found in together:
        assert found["messages"] == {1: 5 * 2 + 1 + 2 + 2, 3: 2 * 2 + 1 + 2 + 2}


def test_buffers_that_a_step_changes_are_those_of_the_first_process(together):
    first, second = (found["buffers"] for found in together)
    assert all(map(torch.equal, first, second))


def test_workers_of_different_processes_draw_different_numbers(together):
    first, second = (found["drawn"] for found in together)
    assert not torch.isin(first, second).any()


def test_what_cannot_be_shared_is_refused_in_every_process(together):
    for found in together:
        odd, graph, apart, alone = found["refused"]
        assert "a batch of 15 rows cannot be shared by 2 processes; use a multiple of 2" in odd
        assert 'graph="on", and a step of several processes is not captured' in graph
        assert "process 1 has a first batch of the iterable data with the checksum" in apart
        assert "2 processes were started together, and each would train on all rows" in alone


def test_a_launched_process_does_not_train_alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(BadRecipe, match=r'2 processes were started together, .*use Trainer\(…, distributed="ddp"\)'):
        fitted()


def test_one_process_trains_alone_whatever_it_was_told():
    for way in ("ddp", "fsdp"):
        same(outcome(*fitted(distributed=way)), outcome(*fitted()))
    with pytest.raises(BadRecipe, match='distributed=\'dp\'; use "ddp", "fsdp" or None'):
        fitted(distributed="dp")
