"""What the program holds is compared: generators, schedulers, averages, arrays; and threads and temporary files."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Sampler
from warm import warmed

from hotlap.judge.gates import gate
from hotlap.records.trial import Sample, Trial, TrialStage
from hotlap.trial.belongings import MOST_ENTRIES, Belongings, Roots
from hotlap.trial.holdings import Holdings
from hotlap.trial.local import LocalRunner
from hotlap.trial.runner import Spec

PROGRAM = Path(__file__).parent / "programs" / "belongings.py"
STEPS = 60
WHY = {
    "numpy generator": "own random streams: rng differs",
    "random.Random": "own random streams: shuffler differs",
    "torch.Generator": "own random streams: generator differs",
    "schedule": "schedulers: main: schedule.milestones is {} instead of {3000: 1}",
    "average": "own tensors: main: average.shadow differs",
    "array": "own arrays: table (array) differs",
    "threads": "process: number of threads is growing instead of not growing",
    "temporary files": "temporary files: 60 temporary files are left where the baseline leaves 0",
}


def trial(arm: str, samples: list[Sample]) -> Trial:
    stage = TrialStage.NOISE if arm == "base" else TrialStage.ALONE
    return Trial(
        schema=1, name=arm, stage=stage, entry=None, value=None, base=(), new=(), risk="exact", samples=tuple(samples)
    )


@pytest.fixture(scope="module", params=["ends by itself", pytest.param("is ended", marks=pytest.mark.thorough)])
def process(request, tmp_path_factory):
    """Run the program: to its own end, when the variables of its function are gone, or until it is ended."""
    folder = tmp_path_factory.mktemp("trial")
    (folder / "tmp").mkdir()
    (folder / "work").mkdir()
    whole = STEPS if request.param == "ends by itself" else 10 * STEPS
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "work")
        patch.setenv("HOTLAP_STRICT", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("TMPDIR", str(folder / "tmp"))
        runner = LocalRunner(tuple(warmed([sys.executable, str(PROGRAM), str(whole)])), folder / "kept", 8.0)

        def run(arm: str, harm: str = "") -> Sample:
            patch.setenv("HARM", harm)
            sample = runner.run(Spec(number=0, arm=arm, choices=(), seed_shift=0, steps=STEPS, least=25, seconds=600.0))
            assert sample.ended == "measured", sample.why
            return sample

        yield run


@pytest.fixture(scope="module")
def noise(process) -> Trial:
    return trial("base", [process("base"), process("new")])


def judged(noise: Trial, process, harm: str):
    return gate(trial("new", [noise.samples[0], process("new", harm)]), noise, None)


@pytest.mark.parametrize("harm", WHY)
def test_harm_to_what_the_program_holds_is_rejected_by_name(harm, noise, process):
    found = judged(noise, process, harm)
    assert found.passed is False
    assert found.why.startswith(WHY[harm])


def test_a_change_that_holds_tensors_and_generators_of_its_own_passes(noise, process):
    found = judged(noise, process, "none")
    assert found.passed, found.why
    (arrays,) = [check for check in found.checks if check.name == "own arrays"]
    assert arrays.left_out == ("main: meter.seconds (array)",), "times vary within the baseline"


# The walk


class Owner:
    __slots__ = ("__dict__", "slotted")

    def __init__(self, **fields):
        self.slotted = torch.ones(2)
        vars(self).update(fields)


def walked(**variables) -> Belongings:
    return Belongings(torch).walk(variables.items())


def test_tensors_are_named_by_the_path_to_their_container():
    owner = Owner(shadow={"a": torch.ones(2), "b": [torch.zeros(3)]}, other=[np.ones(2)])
    found = walked(ema=owner)
    assert sorted(found.tensors) == ["ema.shadow", "ema.shadow['b']", "ema.slotted"]
    assert sorted(found.arrays) == ["ema.other"]


def test_closures_methods_partials_and_attributes_of_modules_are_entered():
    held = torch.ones(2)
    owner = Owner()
    found = walked(
        closure=lambda: held, method=owner.__init__, partial=functools.partial(print, np.ones(1)),
        model=type("Net", (nn.Module,), {})(),
    )  # fmt: skip
    assert sorted(found.tensors) == ["closure.held", "method.slotted"]
    assert sorted(found.arrays) == ["partial.args"]


def test_libraries_graphs_and_circles_are_left_out():
    leaf = torch.ones(2, requires_grad=True)
    circle = [leaf.sum()]
    circle.append(circle)
    found = walked(circle=circle, foreign=SimpleNamespace(tensor=torch.ones(1)), kind=Owner, name="words")
    assert (found.tensors, found.arrays, found.generators) == ({}, {}, [])


def test_a_generator_from_which_a_loader_may_draw_ahead_is_left_out():
    class Own(Sampler):
        def __init__(self):
            self.rng = np.random.default_rng(0)

    ahead = RandomSampler(range(4), replacement=True, generator=torch.Generator())
    whole = DataLoader(range(4), shuffle=True, generator=torch.Generator())
    found = walked(own=Own(), ahead=ahead, whole=whole)
    assert [name for name, _ in found.generators] == ["whole.generator"]


def test_a_container_that_a_step_makes_anew_is_left_out():
    roots, owner = Roots(torch), Owner()
    lasting, batch, running = {"weight": torch.ones(2)}, {"inputs": torch.ones(2)}, torch.zeros(1)
    roots.training_begins()
    batch = {"inputs": torch.ones(2)}
    roots.second_step_over()
    names = {name.split(": ")[-1] for name, _ in roots.all()}
    assert {"owner", "lasting", "running"} <= names
    assert "batch" not in names
    assert batch
    assert lasting
    assert running is not owner


def test_what_a_function_got_from_locals_does_not_change():
    roots = Roots(torch)

    def train(rate):
        settings = locals()
        weight = torch.ones(rate)
        roots.training_begins()
        roots.second_step_over()
        return dict(settings), len(weight), Holdings(torch, roots, ()).unread

    settings, _, unread = train(2)
    assert {name for name in settings if name != "roots"} == {"rate"}
    assert sys.version_info >= (3, 13) or "variables of train" in unread


def test_the_walk_is_short_and_says_what_it_left_out():
    owner = Owner(
        shadow=[torch.ones(1000, 1000) for _ in range(20)],
        rows=[{"text": "x", "id": number} for number in range(50_000)],
        images=np.zeros((60_000, 784), np.uint8),
    )
    roots = Roots(torch)
    roots.training_begins()
    before = Holdings(torch, roots, ())
    assert any(f"beyond the first {MOST_ENTRIES:,}" in line for line in before.unread)
    owner.shadow[7].mul_(1.001)
    owner.images[30_000:] = 1
    after = Holdings(torch, roots, ())
    differing = {name for name in _differing(before, after) if name.startswith("owner")}  # not of other tests' modules
    assert differing == {"owner.images (array)", "owner.shadow"}


def _differing(before: Holdings, after: Holdings) -> set[str]:
    left, right = ({**{f.name: f.digest for f in found.held}, **dict(found.contents)} for found in (before, after))
    return {name.split(": ")[-1] for name in left if left[name] != right.get(name)}
