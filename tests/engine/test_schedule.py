"""The rates of torch schedulers are followed; a scheduler that changes anything else is rejected."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler

from hotlap.engine import Cosine, FromTorch
from hotlap.engine.errors import BadRecipe
from hotlap.engine.schedule import Rates


def rates(make, by=None):
    return Rates([0.05], FromTorch(make=make, by=by), warmup=0, epochs=2, steps=8)


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer, **options: lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=16, **options),
        lambda optimizer, **options: lr_scheduler.CyclicLR(optimizer, 0.001, 0.1, step_size_up=3, **options),
    ],
)
def test_rejects_cycled_momentum_but_follows_the_rates_alone(make):
    with pytest.raises(BadRecipe, match=r"LR changes momentum.*cycle_momentum=False"):
        rates(make)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.05, momentum=0.9)
    scheduler, expected = make(optimizer, cycle_momentum=False), []
    for _ in range(8):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    found = rates(lambda optimizer: make(optimizer, cycle_momentum=False)).table(0)[0]
    assert found.tolist() == pytest.approx(expected)


class DecaysWeights(lr_scheduler.LambdaLR):
    """A scheduler that changes more than the rate, but only from its second step on."""

    def step(self, epoch=None):
        super().step(epoch)
        if self.last_epoch > 1:
            self.optimizer.param_groups[0]["weight_decay"] *= 0.5


def test_rejects_a_scheduler_once_it_changes_more_than_the_rate():
    with pytest.raises(BadRecipe, match="DecaysWeights changes weight_decay"):
        rates(lambda optimizer: DecaysWeights(optimizer, lambda step: 1.0), by="step").table(0)
    by_epoch = rates(lambda optimizer: DecaysWeights(optimizer, lambda step: 1.0))
    by_epoch.epoch_ended(0.0)
    with pytest.raises(BadRecipe, match="DecaysWeights changes weight_decay"):
        by_epoch.epoch_ended(0.0)


def test_rejects_an_unknown_schedule_unit():
    with pytest.raises(BadRecipe, match="by='batch' for a schedule; use one of step, epoch"):
        Cosine(by="batch")


def one_cycle(optimizer, **options):
    return lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, cycle_momentum=False, **options)


def test_a_scheduler_steps_as_torch_documents_it():
    cycle = rates_of(one_cycle, total_steps=16)
    whole = [*cycle.table(0)[0], *cycle.table(1)[0]]
    assert max(whole) == pytest.approx(0.1, rel=0.01)
    assert whole[-1] < 1e-5
    in_sequence = rates(
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.ConstantLR(optimizer), one_cycle(optimizer, total_steps=14)], milestones=[2]
        )
    )
    assert in_sequence.vary
    assert not rates_of(lr_scheduler.StepLR, step_size=3).vary
    assert not rates_of(lr_scheduler.CosineAnnealingLR, T_max=2).vary
    assert not rates_of(one_cycle, by="epoch", total_steps=2).vary


def rates_of(scheduler, by=None, **options):
    return rates(lambda optimizer: scheduler(optimizer, **options), by)


def test_a_cycle_shorter_than_the_phase_is_refused_before_the_first_step():
    with pytest.raises(BadRecipe, match=r"ends after total_steps=8, but the phase has 16 steps; create it with .*=16"):
        rates_of(one_cycle, total_steps=8)
