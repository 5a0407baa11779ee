"""Recurrent state is as declared: zero for shuffled windows, carried between windows that follow each other."""

import pytest
import torch
from torch import nn

from hotlap.engine.data import CarriedWindows, Tensors
from hotlap.engine.recurrent import Recurrent, StateRefused, carrying, flatten, is_flat, require_order, reset_state


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_zero_state_gives_what_torch_gives_for_zeros(cell):
    layers = Recurrent(cell, 3, 5, 2)
    window = torch.randn(4, 7, 3)
    zeros = torch.zeros(2, 4, 5)
    expected, _ = layers.layers(window, (zeros, zeros) if cell == "lstm" else zeros)
    assert torch.equal(layers(window), expected[:, -1])
    assert torch.equal(Recurrent.forward(layers, window), layers(window))  # the previous call left no state


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_carried_state_reads_a_series_as_if_it_came_in_one_piece(cell):
    series = [torch.randn(12, 3), torch.randn(8, 3), torch.randn(4, 3)]
    source = CarriedWindows(series, 4, [part[:, :1] for part in series], lanes=2)
    layers = Recurrent(cell, 3, 5, state="carry", lanes=2, last=False)
    read = []
    for start in range(0, source.rows, 2):
        window, fresh, _ = source.gather(torch.arange(start, start + 2))
        read.append(layers(window, fresh))
    lanes = torch.cat(read, dim=1)
    whole = [layers.layers(part.unsqueeze(0))[0][0] for part in series]
    torch.testing.assert_close(lanes[0], whole[0])
    torch.testing.assert_close(lanes[1, :8], whole[1])
    torch.testing.assert_close(lanes[1, 8:], whole[2])


def test_a_carried_state_is_written_in_place_and_gets_no_gradient_from_later_batches():
    layers = Recurrent("lstm", 3, 5, state="carry", lanes=2)
    address = layers.carried_h.data_ptr()
    for _ in range(3):
        layers(torch.randn(2, 4, 3)).sum().backward()
    assert layers.carried_h.data_ptr() == address
    assert layers.carried_h.any()
    assert not layers.carried_h.requires_grad
    reset_state(layers)
    assert not layers.carried_h.any()
    assert not layers.carried_c.any()
    saved = layers.state_dict().keys() - Recurrent("lstm", 3, 5).state_dict().keys()
    assert saved == {"carried_h", "carried_c"}  # a run resumed within an epoch goes on with it


def test_rejects_carrying_a_state_over_rows_that_do_not_continue():
    model = nn.Sequential(Recurrent("gru", 3, 5, state="carry", lanes=2))
    part = [torch.randn(12, 3)]
    ordered = CarriedWindows(part, 4, [part[0][:, :1]], lanes=2)
    require_order(model, shuffle=False, batch_size=2, source=ordered)
    with pytest.raises(StateRefused, match="shuffled rows: each state would continue from an unrelated window"):
        require_order(model, shuffle=True, batch_size=2, source=ordered)
    with pytest.raises(StateRefused, match="Tensors, whose batches do not continue"):
        require_order(model, shuffle=False, batch_size=2, source=Tensors(torch.zeros(4)))
    with pytest.raises(StateRefused, match="batches of 3 rows cannot continue 2 lanes"):
        require_order(model, shuffle=False, batch_size=3, source=ordered)
    with pytest.raises(StateRefused, match="a batch of 3 rows"):
        model(torch.randn(3, 4, 3))


def test_a_zero_state_trains_on_anything():
    model = nn.Sequential(Recurrent("gru", 3, 5))
    assert list(carrying(model)) == []
    require_order(model, shuffle=True, batch_size=7, source=Tensors(torch.zeros(4)))


@pytest.mark.parametrize("options", [{"state": "carry"}, {"lanes": 3}])
def test_lanes_and_a_carried_state_need_each_other(options):
    with pytest.raises(StateRefused, match="lanes"):
        Recurrent("lstm", 3, 5, **options)


def test_distinguishes_flat_weights_from_scattered_ones():
    layer = nn.LSTM(3, 5)
    assert not is_flat(layer)
    sizes = [weight.numel() for weight in layer._flat_weights]
    memory = torch.zeros(sum(sizes))
    with torch.no_grad():
        for weight, place in zip(layer._flat_weights, memory.split(sizes), strict=True):
            weight.data = place.view_as(weight)
    assert is_flat(layer)
    assert flatten(nn.Sequential(layer)) == 0


def test_the_trainer_carries_refuses_and_resumes_a_carried_state(tmp_path):
    from hotlap.engine import Checkpoints, Recipe, Trainer

    generator = torch.Generator().manual_seed(1)
    series = [torch.randn(40, 3, generator=generator), torch.randn(24, 3, generator=generator)]
    source = CarriedWindows(series, 4, [part[:, :1].cumsum(0) for part in series], lanes=2)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Recurrent("gru", 3, 5, state="carry", lanes=2)
            self.head = nn.Linear(5, 1)

        def forward(self, window, fresh):
            return self.head(self.body(window, fresh))

    def trainer(folder=None, callbacks=(), shuffle=False):
        torch.manual_seed(0)
        model = Net()
        recipe = Recipe(
            batch_size=2, shuffle=shuffle, compile="off", log_every=3, evaluation_batch=2,
            checkpoints=Checkpoints(folder, steps=3) if folder else None,
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return Trainer(model, nn.functional.mse_loss, optimizer, recipe, inputs=2, callbacks=callbacks,
                       device="cpu", say=lambda line: None)  # fmt: skip

    with pytest.raises(StateRefused, match="shuffled rows"):
        trainer(shuffle=True).fit(source, epochs=1)
    whole = trainer()
    whole.fit(source, source, epochs=2)

    class Stopped(Exception):
        pass

    def stop(record):
        if getattr(record, "step", 0) > 6:
            raise Stopped

    first = trainer(tmp_path, [stop])
    with pytest.raises(Stopped):
        first.fit(source, source, epochs=2)
    second = trainer(tmp_path)
    second.fit(source, source, epochs=2, resume=True)
    for uninterrupted, resumed in zip(
        whole.model.state_dict().values(), second.model.state_dict().values(), strict=True
    ):
        assert torch.equal(uninterrupted, resumed)
