"""Metrics given unusual inputs: right where these have a meaning, rejected with a remedy where they do not."""

from __future__ import annotations

import pytest
import torch

from hotlap.engine import RMSE, Dice, GroupMeans, Mean
from hotlap.engine.errors import BadRecipe
from tests.engine.training import Rows, fitted


def updated(metric, outputs, *targets):
    metric.update(outputs, *targets)
    return metric.compute().item()


@pytest.mark.parametrize("targets", [(torch.zeros(4, 2),), ()])
def test_mean_rejects_several_values_per_row(targets):
    metric = Mean(lambda outputs, *targets: outputs.abs())
    with pytest.raises(
        BadRecipe, match=r"Mean got values of shape \[4, 2\] for 4 rows; of= must return one per row, such as"
    ):
        metric.update(torch.ones(4, 2), *targets)
    assert not metric.totals.any()


def test_mean_rejects_several_values_of_a_single_row():
    with pytest.raises(BadRecipe, match=r"Mean got values of shape \[1, 3\] for 1 rows"):
        Mean(lambda outputs, target: outputs).update(torch.ones(1, 3), torch.zeros(1))


def test_mean_accepts_a_column():
    assert updated(Mean(lambda outputs, target: outputs), torch.tensor([[1.0], [2.0]]), torch.zeros(2, 5)) == 1.5


def group_means(groups):
    return GroupMeans(3, of=lambda values, groups: (values, groups)), torch.tensor([1.0, 3.0, 5.0, 9.0]), groups


WHOLE = [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.uint64]


@pytest.mark.parametrize("dtype", WHOLE)
def test_groups_may_be_integers_of_any_width(dtype):
    metric, values, groups = group_means(torch.tensor([0, 0, 1, 2]).to(dtype))
    metric.update(values, groups)
    assert metric.means().tolist() == [2.0, 5.0, 9.0]


@pytest.mark.parametrize("shape", [(4, 1), (2, 2)])
def test_groups_may_be_columns(shape):
    metric, values, groups = group_means(torch.tensor([0, 0, 1, 2]))
    metric.update(values.view(shape), groups.view(shape))
    assert metric.means().tolist() == [2.0, 5.0, 9.0]


def test_out_of_range_narrow_groups_are_rejected_when_read():
    metric, values, groups = group_means(torch.tensor([0, 255, 1, 2], dtype=torch.uint8))
    metric.update(values, groups)
    assert metric.compute().isnan()
    with pytest.raises(BadRecipe, match="0 rows are in a group below 0 and 1 rows in one above 2"):
        metric.explain()


def test_rejects_groups_that_are_not_integers():
    metric, values, groups = group_means(torch.tensor([0.0, 0.0, 1.0, 2.0]))
    with pytest.raises(BadRecipe, match=r"groups of GroupMeans are torch.float32; of= must return whole numbers"):
        metric.update(values, groups)
    assert not metric.totals.any()


@pytest.mark.parametrize(("outputs_shape", "target_shape"), [((4,), (4,)), ((4, 1), (4,)), ((), ())])
def test_dice_rejects_rows_without_elements(outputs_shape, target_shape):
    with pytest.raises(
        BadRecipe, match=r"Dice compares the elements of each row, but got shape \[4?\]; give of=.*BinaryF1"
    ):
        Dice().update(torch.zeros(outputs_shape), torch.zeros(target_shape))


def test_rmse_accepts_booleans_and_unsigned_integers():
    outputs, truth = torch.tensor([0.5, 1.0]), torch.tensor([True, False])
    assert updated(RMSE(), outputs, truth) == pytest.approx((1.25 / 2) ** 0.5)
    assert updated(RMSE(), truth, ~truth) == 1.0
    ones, twos = (torch.full((3,), number, dtype=torch.uint8) for number in (1, 2))
    assert updated(RMSE(), ones, twos) == 1.0


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.int64, torch.uint8])
def test_rmse_of_mixed_types_is_bit_exact(kind):
    generator = torch.Generator().manual_seed(0)
    outputs, target = torch.randn(99, generator=generator), (9 * torch.rand(99, generator=generator)).to(kind)
    metric = RMSE()
    metric.update(outputs, target)
    assert metric.totals[0].item() == (outputs - target).square().sum().item()


def test_training_reports_what_its_metric_cannot_take():
    source = Rows(torch.zeros(20, 6), torch.zeros(20, 1))
    with pytest.raises(BadRecipe, match=r"Mean got values of shape \[\d+, 6\]"):
        fitted(train=source, valid=source, metrics={"spread": Mean(lambda outputs, target: target.expand(-1, 6))})
