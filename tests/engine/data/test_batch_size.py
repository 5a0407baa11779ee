"""Batch sizes are measured by whole training steps on copies, and the report says what a change would mean."""

import pytest
import torch
from torch import nn

from hotlap.engine.data import Arrays, DataError, EmptySplit, Stream, Tensors
from hotlap.engine.data.batch_size import BatchSizeMeasurement, BatchSizes, measure_batch_sizes


def parts(optimizer=torch.optim.Adam):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 1))
    return model, optimizer(model.parameters(), lr=0.001), Tensors(torch.randn(256, 8), torch.randn(256, 1))


def step(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def test_every_size_is_measured_and_the_users_objects_are_untouched():
    model, optimizer, source = parts()
    step(model, source.gather(torch.arange(4))).backward()
    optimizer.step()
    weights = [tensor.clone() for tensor in model.state_dict().values()]
    moments = [value.clone() for state in optimizer.state.values() for value in state.values()]
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    random = torch.get_rng_state()
    report = measure_batch_sizes(model, optimizer, step, source, now=32, seconds=0.001)
    assert [measurement.batch_size for measurement in report.measured] == [8, 16, 32, 64, 128, 256]
    assert all(torch.equal(a, b) for a, b in zip(weights, model.state_dict().values(), strict=True))
    now = [value for state in optimizer.state.values() for value in state.values()]
    assert all(torch.equal(a, b) for a, b in zip(moments, now, strict=True))
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, model.parameters(), strict=True))
    assert torch.equal(random, torch.get_rng_state())


def test_memory_counts_weights_gradients_moments_and_activations():
    model, optimizer, source = parts()
    small, large = measure_batch_sizes(model, optimizer, step, source, 16, [16, 256], seconds=0.001).measured
    weights = sum(p.numel() * 4 for p in model.parameters())
    assert small.memory > 4 * weights  # each weight has a gradient and two moments
    growth = (large.memory - small.memory) / (256 - 16)
    assert 4 * (8 + 1 + 64) < growth < 4 * (8 + 1 + 64) * 5  # the batch, and a few activations of 64


def test_a_size_that_does_not_fit_ends_the_search_and_is_reported():
    model, optimizer, source = parts()

    def greedy(model, batch):
        if len(batch[0]) >= 64:
            raise torch.OutOfMemoryError("out of memory")
        return step(model, batch)

    report = measure_batch_sizes(model, optimizer, greedy, source, 16, [16, 32, 64, 128], seconds=0.001)
    assert [measurement.batch_size for measurement in report.measured] == [16, 32]
    assert report.out_of_memory == (64,)
    assert "     64  out of memory" in report.lines()
    with pytest.raises(DataError, match="not even a batch of 64"):
        measure_batch_sizes(model, optimizer, greedy, source, 64, [64], seconds=0.001)


def report(*speeds, now=32, adaptive=True):
    sizes = [16 * 2**power for power in range(len(speeds))]
    measured = tuple(
        BatchSizeMeasurement(size, (size / speed,), 1000) for size, speed in zip(sizes, speeds, strict=True)
    )
    return BatchSizes(1000, now, 0.001, adaptive, measured, ())


def test_suggests_the_smallest_nearly_fastest_size_and_says_what_it_changes():
    chosen = report(100, 200, 390, 400)
    assert chosen.suggested.batch_size == 64
    said = "\n".join(chosen.lines())
    assert "batch size 32 -> 64 is a different training: 32 -> 16 updates per epoch" in said
    assert "each the mean of 2 times as many samples" in said
    assert "a starting point for 64 is 0.0014 (by the square root" in said
    assert "measure the quality again" in said
    assert "a starting point for 64 is 0.002 (in proportion" in "\n".join(
        report(100, 200, 390, 400, adaptive=False).lines()
    )


def test_says_when_the_current_size_is_right_already():
    assert report(100, 400, 400).meaning() == [
        "batch size 32 is the smallest that is nearly as fast as the fastest: nothing to change"
    ]


def test_rejects_a_batch_larger_than_the_data():
    model, optimizer, source = parts()
    with pytest.raises(EmptySplit, match="now=512 is not a batch size for 256 rows"):
        measure_batch_sizes(model, optimizer, step, source, now=512)


def test_rejects_a_streamed_source_and_says_what_to_give_instead():
    model, optimizer, source = parts()
    stream = Stream(Arrays(*(tensor.numpy() for tensor in source.tensors)))
    with pytest.raises(DataError, match=r"a Stream reads them as needed; give some of its rows: Tensors\("):
        measure_batch_sizes(model, optimizer, step, stream, now=32)
