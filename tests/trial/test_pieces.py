"""Blocks and warm-up from times, endings from last words, seeds, printed metrics, values to look at."""

from __future__ import annotations

import io
import math
import random
from dataclasses import replace

import numpy
import pytest
import torch

from hotlap.patch.ledger import Ledger
from hotlap.plan import search as room
from hotlap.plan.search import EachOne, Sampled, says_thinned, search, thinned
from hotlap.process.output import Listener, Pattern
from hotlap.records.codec import from_json, to_json
from hotlap.records.trial import Ended
from hotlap.records.verdict import Gate
from hotlap.trial.blocks import blocks, warmup_steps
from hotlap.trial.endings import Process, how_it_ended
from hotlap.trial.order import Told
from hotlap.trial.seeds import Seeds

# Blocks


def ends(*seconds: float) -> list[float]:
    total, found = 10.0, []
    for one in seconds:
        total += one
        found.append(total)
    return found


def test_warm_up_ends_when_steps_are_steady():
    assert warmup_steps(10.0, ends(5.0, 1.0, 0.5, *[0.1] * 50)) in range(5, 9)


def test_a_long_compilation_does_not_end_warm_up_by_itself():
    assert warmup_steps(10.0, ends(0.1, 0.1, 60.0, 30.0, *[0.1] * 60)) in range(4, 10)


def test_steps_that_never_settle_warm_up_for_half_of_the_run():
    assert warmup_steps(10.0, ends(*(0.1 * 2.0 ** (step % 5) for step in range(4, 44)))) <= 20


def test_something_compiled_again_early_is_warm_up_and_a_stall_that_comes_back_is_not():
    assert warmup_steps(10.0, ends(*[0.1] * 12, 8.0, *[0.1] * 60)) == 13
    assert warmup_steps(10.0, ends(*[0.1] * 12, 8.0, *[0.1] * 30, 8.0, *[0.1] * 30)) == 5


def test_no_step_after_warm_up_is_left_out_of_the_blocks():
    moments = [(step, step * 0.1) for step in range(1, 101)]
    found = blocks(moments, 7, 32.0)

    assert len(found) <= 12
    assert (found[0].first, sum(one.steps for one in found)) == (7, 93)
    assert sum(one.seconds for one in found) == pytest.approx(9.3)
    assert all(one.samples == 32.0 * one.steps for one in found)


def test_few_moments_on_the_device_make_few_blocks():
    found = blocks([(10, 0.0), (40, 1.5), (75, 3.0)], 8, 1.0)

    assert [(one.first, one.steps, one.seconds) for one in found] == [(10, 30, 1.5), (40, 35, 1.5)]
    assert blocks([(10, 0.0)], 8, 1.0) == ()


# Endings


TOLD = Told(
    schema=1, pid=1, rank=0, done=False, began=1.0, ends=tuple(ends(*[0.1] * 40)), marks=(), losses=(1.0,) * 40,
    readings=(), hardware="", host_mb=1.0, device_mb=None,
)  # fmt: skip
PROCESS = Process(told=TOLD, exit_code=0, ended_by_us=None, last_words=(), problem=None)


@pytest.mark.parametrize(
    ("change", "ended", "why"),
    [
        ({}, Ended.MEASURED, ""),
        ({"told": replace(TOLD, done=True), "ended_by_us": (Ended.HUNG, "deaf")}, Ended.MEASURED, ""),
        ({"told": replace(TOLD, ends=TOLD.ends[:9])}, Ended.TOO_SHORT, "after 9 steps"),
        ({"told": None}, Ended.NEVER_STEPPED, "without a training step"),
        ({"told": replace(TOLD, losses=(1.0, math.nan), done=True)}, Ended.NOT_A_NUMBER, "step 2"),
        ({"exit_code": -9}, Ended.OUT_OF_MEMORY, "killed by the system"),
        ({"exit_code": 1, "last_words": ["torch.OutOfMemoryError: CUDA out of memory."]}, Ended.OUT_OF_MEMORY, "CUDA"),
        (
            {"exit_code": 1, "last_words": ["RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`"]},
            Ended.OUT_OF_MEMORY,
            "CUBLAS_STATUS_ALLOC_FAILED",
        ),
        (
            {"exit_code": 1, "last_words": ["RuntimeError: data. DefaultCPUAllocator: not enough memory: you tried"]},
            Ended.OUT_OF_MEMORY,
            "DefaultCPUAllocator",
        ),
        ({"exit_code": 1, "last_words": ["x", "MemoryError"]}, Ended.OUT_OF_MEMORY, "MemoryError"),
        ({"exit_code": 1, "last_words": ["ValueError: of mine", "bye"]}, Ended.CRASHED, "ValueError: of mine (exit co"),
        (
            {"exit_code": 1, "last_words": ["RuntimeError: DataLoader worker (pid 7) exited unexpectedly"]},
            Ended.CRASHED,
            "DataLoader worker (pid 7)",
        ),
        ({"exit_code": -11}, Ended.CRASHED, "signal 11"),
        ({"exit_code": 70, "problem": "cannot prepare"}, Ended.CRASHED, "cannot prepare"),
        ({"ended_by_us": (Ended.OVER_TIME, "9 s")}, Ended.OVER_TIME, "9 s"),
    ],
)
def test_how_a_process_ended(change, ended, why):
    found = how_it_ended(replace(PROCESS, **change), least=25)

    assert found[0] is ended
    assert why in found[1]


# Seeds


@pytest.fixture
def shifted():
    ledgers = []
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()

    def shift(by: int) -> None:
        ledgers.append(Ledger())
        Seeds(by, ledgers[-1]).install()

    yield shift
    for ledger in ledgers:
        ledger.close()
    random.setstate(states[0])
    numpy.random.set_state(states[1])
    torch.set_rng_state(states[2])


DRAWS = {
    "torch": lambda seed: (torch.manual_seed(seed), torch.rand(1).item())[1],
    "a generator": lambda seed: torch.rand(1, generator=torch.Generator().manual_seed(seed)).item(),
    "python": lambda seed: (random.seed(seed), random.random())[1],
    "a python generator": lambda seed: random.Random(seed).random(),
    "numpy": lambda seed: (numpy.random.seed(seed), numpy.random.rand())[1],
    "a numpy generator": lambda seed: numpy.random.default_rng(seed).random(),
}


@pytest.mark.parametrize("kind", DRAWS)
def test_every_seed_is_shifted_by_the_same_and_by_nothing_where_nothing_is_asked(kind, shifted):
    expected = [DRAWS[kind](seed) for seed in (5, 7)]
    shifted(0)
    assert DRAWS[kind](5) == expected[0]
    shifted(2)
    assert DRAWS[kind](5) == expected[1]


def test_without_a_seed_of_its_own_a_program_draws_the_same_each_time(shifted):
    drawn = []
    for shift in (0, 0, 1):
        shifted(shift)
        drawn.append((torch.rand(1).item(), random.random(), numpy.random.rand(), numpy.random.default_rng().random()))

    assert drawn[0][:3] == drawn[1][:3]
    assert all(one != other for one, other in zip(drawn[0], drawn[2], strict=True))


def test_a_shifted_generator_is_still_torch_s(shifted):
    shifted(1)
    generator = torch.Generator()

    assert generator.manual_seed(3) is generator
    assert isinstance(torch.default_generator, torch.Generator)
    assert list(torch.utils.data.RandomSampler(range(3), generator=generator))


# What is printed


def test_the_metric_is_read_from_lines_and_progress_bars():
    found = Pattern("acc", r"acc: ([0-9.]+)", lambda: 7)
    listener = Listener(io.BufferedReader(io.BytesIO(b"epoch 1 acc: 0.5\r 20% acc: 0.7\nacc: x\nlast")), found.read)
    listener.wait(5.0)

    assert [(one.step, one.value) for one in found.readings] == [(7, 0.5), (7, 0.7)]
    assert list(listener.last) == ["epoch 1 acc: 0.5", " 20% acc: 0.7", "acc: x", "last"]


# Values


def test_a_handful_is_tried_whole_and_more_are_sampled():
    few = search(["1", "2", "4"])
    assert list(few.values()) == ["1", "2", "4"]

    many = search([str(one) for one in range(40)])
    looked = []
    for value in many.values():
        looked.append(int(value))
        many.tell(value, -abs(int(value) - 20))
    assert isinstance(many, Sampled)
    assert 3 <= len(looked) == len(set(looked)) <= 6


def test_without_the_sampler_a_handful_is_spread_over_all_and_that_is_said(monkeypatch):
    import builtins

    ordinary = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", lambda name, *rest: _absent(ordinary, name, *rest))
    values = [str(one) for one in range(9)]

    assert isinstance(search(values), EachOne)
    assert thinned(values) == ["0", "2", "4", "6", "8"]
    assert "pip install 'hotlap[tune]'" in says_thinned(values)
    assert says_thinned(values[: room.HANDFUL]) is None


def _absent(ordinary, name, *rest):
    if name == "optuna":
        raise ImportError(name)
    return ordinary(name, *rest)


# Records


def test_named_figures_of_a_verdict_come_back():
    gate = Gate(risk="exact", passed=None, rule="", why="", figures=(("margin", 0.5), ("seeds", 3.0)))

    assert from_json(Gate, to_json(gate), "test") == gate


def test_steps_before_data_is_kept_are_warm_up():
    """From the second epoch on; the evaluation between the two is a step that takes long."""
    slow, quick = [0.1, 0.11] * 50, [0.03] * 80
    assert warmup_steps(10.0, ends(*slow, 0.5, *quick)) in range(98, 106)


def test_steps_that_become_slower_are_no_warm_up():
    assert warmup_steps(10.0, ends(*[0.03] * 100, *[0.1] * 80)) < 15
