"""Metrics accumulated batch by batch on the device match their definitions."""

from __future__ import annotations

import pytest
import torch

from hotlap.engine import MAE, RMSE, Accuracy, BinaryF1, Dice, GroupMeans, Mean
from hotlap.engine.errors import BadRecipe
from hotlap.engine.evaluation import Evaluation
from hotlap.engine.metrics import f1, is_higher_better, majority, read
from hotlap.engine.update import Forward
from tests.engine.training import Rows, Stream, fitted


def over_batches(metric, outputs, *targets, size=7):
    metric.reset()
    for first in range(0, len(outputs), size):
        metric.update(*(tensor[first : first + size] for tensor in (outputs, *targets)))
    return metric.compute().item()


@pytest.fixture
def drawn():
    generator = torch.Generator().manual_seed(5)
    return torch.rand(40, 9, generator=generator), torch.rand(40, 9, generator=generator) > 0.6


def test_root_mean_square_error(drawn):
    outputs, truth = drawn
    expected = (outputs - truth.float()).square().mean().sqrt().item()
    assert over_batches(RMSE(), outputs, truth.float()) == pytest.approx(expected)


def test_mean_of_rows_and_of_batches(drawn):
    outputs, _ = drawn
    assert over_batches(Mean(lambda outputs, target: outputs.sum(1)), outputs, outputs) == pytest.approx(
        outputs.sum(1).mean().item()
    )
    assert over_batches(Mean(lambda outputs, target: outputs.mean()), outputs, outputs) == pytest.approx(
        outputs.mean().item()
    )


def test_binary_f1(drawn):
    outputs, truth = drawn
    found = outputs >= 0.5
    both = (found & truth).sum().item()
    expected = 2 * both / (found.sum().item() + truth.sum().item())
    assert over_batches(BinaryF1(), outputs, truth) == pytest.approx(expected)
    assert over_batches(BinaryF1(2.0), outputs, torch.zeros_like(truth)) == 0.0


def test_dice_of_each_row(drawn):
    outputs, truth = drawn
    outputs[0], truth[0] = 0.0, False  # nothing predicted and nothing there: right
    scores = []
    for row, actual in zip(outputs > 0.5, truth, strict=True):
        predicted = {i for i, on in enumerate(row.tolist()) if on}
        there = {i for i, on in enumerate(actual.tolist()) if on}
        total = len(predicted) + len(there)
        scores.append(2 * len(predicted & there) / total if total else 1.0)
    assert over_batches(Dice(), outputs, truth) == pytest.approx(sum(scores) / len(scores))


def test_groups_are_averaged_across_batches_then_judged_together():
    """Six files, each of two long segments of four rows; a file counts when at least half of its segments do."""
    generator = torch.Generator().manual_seed(2)
    values = torch.rand(48, generator=generator)
    truth = torch.tensor([1, 0, 1, 0, 0, 1], dtype=torch.bool)
    groups = torch.arange(48) // 4
    order = torch.randperm(48, generator=generator)
    by_hand = []
    for file in range(6):
        longs = [values[groups == 2 * file + part].mean().item() >= 0.5 for part in range(2)]
        by_hand.append(2 * sum(longs) >= 2)
    expected = f1(torch.tensor(by_hand), truth).item()
    metric = GroupMeans(12, of=lambda out, group: (out, group), finish=lambda m: f1(majority(m >= 0.5, 2), truth))
    assert over_batches(metric, values[order], groups[order], size=5) == pytest.approx(expected)
    assert torch.allclose(metric.means(), torch.stack([values[groups == g].mean() for g in range(12)]).double())


def groups_of(count, *, largest):
    """20 rows; all but the last belong to one of `count` groups."""
    numbers = torch.arange(20) % count
    numbers[-1] = largest
    return Rows(torch.zeros(20, 6), numbers)


@pytest.mark.parametrize(
    ("last", "words"), [(5, "0 rows are in a group below 0 and 1 rows in one above 4"), (-1, "1 rows .* 0 rows in one")]
)
@pytest.mark.parametrize("finish", [torch.nanmean, lambda means: means.nan_to_num().max()])
@pytest.mark.parametrize("kind", ["metrics", "train_metrics"])
def test_a_row_outside_every_group_is_rejected_when_the_metric_is_read(last, words, finish, kind):
    metric = GroupMeans(5, of=lambda outputs, groups: (outputs[:, 0], groups), finish=finish)
    source, options = groups_of(5, largest=last), {"metrics": {}, kind: {"by_group": metric}}
    with pytest.raises(BadRecipe, match=f"GroupMeans has 5 groups, but {words}"):
        fitted(train=source, valid=source, loss=lambda outputs, groups: outputs.square().mean(), **options)
    assert metric.means().isnan().all()


def test_rows_outside_every_group_corrupt_no_memory_and_are_reset():
    metric = GroupMeans(2, of=lambda values, groups: (values, groups))
    ones = torch.ones(3)
    metric.update(ones, torch.tensor([2**62, -(2**62), 1]))
    assert metric.compute().isnan()
    metric.reset()
    metric.update(ones, torch.tensor([0, 1, 1], dtype=torch.int32))
    metric.update(ones[:0], torch.zeros(0, dtype=torch.int64))
    assert read({"mean": metric}) == {"mean": 1.0}
    metric.reset()
    metric.update(ones, torch.tensor([1, 1, 1]))
    assert metric.means().isnan().tolist() == [True, False]  # a group that no row named is no mistake
    with pytest.raises(BadRecipe, match="GroupMeans of 0 groups"):
        GroupMeans(0, of=lambda values, groups: (values, groups))


def test_evaluation_halves_its_batches_until_they_fit():
    sizes, said = [], []

    class Large(torch.nn.Module):
        def forward(self, inputs):
            sizes.append(len(inputs))
            assert torch.is_inference_mode_enabled()
            if len(inputs) > 10:
                raise torch.OutOfMemoryError("too large")
            return inputs

    rows = torch.arange(25.0)[:, None]
    for source in (Rows(rows, rows + 1), Stream(rows, rows + 1)):
        forward = Forward(Large(), None, None, 1, {}, "fp32", False)
        evaluation = Evaluation(forward, {"rmse": RMSE()}, 40, said.append)
        assert evaluation(source, torch.device("cpu")) == {"rmse": 1.0}
        assert sizes[-3:] == [10, 10, 5]
        assert evaluation.batch == 10
    assert said[:2] == [f"evaluation does not fit in memory: using batches of {n} from now on" for n in (20, 10)]


def test_a_module_left_in_evaluation_mode_stays_in_it():
    made, _ = fitted(epochs=1)
    made.model.body[1].eval()
    made.evaluate(Rows(torch.zeros(4, 6), torch.zeros(4, 1)))
    assert made.model.training
    assert not made.model.body[1].training


def test_without_metrics_the_loss_is_the_score():
    _, history = fitted(metrics={}, epochs=1)
    assert list(history.last.scores) == ["valid_loss"]
    assert read({}) == {}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("metric", "outputs_shape", "target_shape"),
    [
        (RMSE(), (4, 1), (4,)),
        (BinaryF1(), (4, 1), (4,)),
        (Dice(), (4, 1), (4, 9)),
        (GroupMeans(2, of=lambda outputs, groups: (outputs, groups)), (4, 1), (4,)),
    ],
)
def test_rejects_shapes_that_would_broadcast_without_reading_the_values(metric, outputs_shape, target_shape, device):
    named = rf"{type(metric).__name__} compares shape \[4, 1\] with .*; give of="
    with pytest.raises(BadRecipe, match=named):
        metric.update(
            torch.zeros(outputs_shape, device=device), torch.zeros(target_shape, dtype=torch.int64, device=device)
        )
    assert not metric.totals.any()


def test_dice_takes_masks_with_and_without_a_channel():
    metric, masks = Dice(), torch.ones(2, 3, 3)
    metric.update(masks[:, None], masks)
    assert metric.compute().item() == 1.0


class Loss(torch.nn.Module):
    """A model that returns its loss, so that all tensors of a batch are inputs."""

    def __init__(self, shape=()):
        super().__init__()
        self.bias, self.shape = torch.nn.Parameter(torch.zeros(1)), shape

    def forward(self, inputs, targets):
        return (inputs + self.bias - targets).square().mean().reshape(self.shape)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_batches_without_targets_are_weighted_by_their_rows(shape):
    inputs = torch.tensor([[0.0]] * 8 + [[10.0]])
    for source in (Rows(inputs, torch.zeros(9, 1)), Stream(inputs, torch.zeros(9, 1))):
        options = {"model": Loss(shape), "loss": lambda loss: loss, "inputs": 2, "batch_size": 2, "rate": 0.0}
        options |= {"metrics": {}, "train_metrics": {"mean": Mean(lambda loss: loss)}}
        _, history = fitted(train=source, valid=source, epochs=1, **options)
        right = pytest.approx(100 / 9)
        assert (history.last.loss, history.last.train_scores["mean"]) == (right, right)
        assert history.last.scores == {"valid_loss": right}


def test_metrics_know_which_direction_is_better():
    assert is_higher_better(None, "score", BinaryF1())
    assert is_higher_better(None, "score", Dice())
    assert is_higher_better(None, "score", Accuracy())
    assert is_higher_better(None, "score", RMSE()) is False
    assert is_higher_better(None, "score", MAE()) is False
    assert is_higher_better(None, "score", Mean(lambda outputs: outputs)) is None
    assert is_higher_better(None, "score", Mean(lambda outputs: outputs, higher_is_better=True))
    assert is_higher_better(None, "score", None) is None
    assert is_higher_better(None, "valid_loss", None) is False
    assert is_higher_better(False, "score", Dice()) is False
    assert is_higher_better(True, "score", RMSE())


def test_accuracy_counts_the_highest_score_of_each_row():
    outputs, target = torch.tensor([[1.0, 3.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1, 1])
    assert over_batches(Accuracy(), outputs, target) == pytest.approx(2 / 3)
    pixels = torch.randn(4, 3, 5, 5)
    assert over_batches(Accuracy(), pixels, pixels.argmax(1)) == 1.0


def test_accuracy_of_one_value_a_row_needs_a_threshold():
    logits, target = torch.tensor([-2.0, 0.25, 3.0]), torch.tensor([0, 1, 0])
    assert over_batches(Accuracy(threshold=0.0), logits, target) == pytest.approx(2 / 3)
    assert over_batches(Accuracy(threshold=0.5), logits, target) == pytest.approx(1 / 3)
    with pytest.raises(BadRecipe, match=r"Accuracy\(threshold=0.0\) for logits"):
        Accuracy().update(logits, target)
    with pytest.raises(BadRecipe, match=r"compares shape \[3, 1\] with \[3\]"):
        Accuracy(threshold=0.0).update(logits[:, None], target)


def test_the_mean_absolute_error_is_over_all_elements():
    outputs, target = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1, 0], [0, 0]])
    assert over_batches(MAE(), outputs, target) == pytest.approx(9 / 4)
