"""channels-last changes the memory layout inside the model, and nobody outside notices."""

from typing import ClassVar

import pytest
import torch
from catalog.compute_models import IMAGES, ROWS, ConvNet, Viewing, adam, mlp, train
from torch import nn

import hotlap


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


def enabled(*more):
    return hotlap.enable(None, with_=["channels-last", *more])


def fused(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


class Seeing(ConvNet):
    """The last layer but one records what it sees outside the module: an attribute of the module would be refused."""

    memory: ClassVar[list] = []

    @property
    def seen(self):
        return self.memory.pop()

    def forward(self, x):
        y = self.body(x)
        self.memory.append(y)
        return self.head(torch.relu(y).mean((2, 3)))


def is_last(tensor):
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


@pytest.mark.parametrize("optimizer", [adam, fused, momentum])
def test_trains_to_the_same_numbers_and_moves_no_weight(optimizer):
    losses, model, _, rng = train(ConvNet, IMAGES, optimizer=optimizer)
    seen = []

    def watched(step, model, opt):
        seen.append(is_last(model.seen))

    with enabled() as running:
        ours, twin, opt, rng_again = train(Seeing, IMAGES, optimizer=optimizer, between=watched)
        assert running.outcomes[0].status == "applied", running.outcomes[0].why
        assert twin.body[3].weight.is_contiguous()
        assert all(tensor.is_contiguous() for state in opt.state.values() for tensor in state.values())
        nn.utils.parameters_to_vector(twin.parameters())  # takes flat views

    assert seen[0] is False
    assert seen[-1] is True
    assert ours == pytest.approx(losses, rel=1e-4)
    assert torch.equal(rng, rng_again)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name], rtol=1e-3, atol=1e-4)


def test_works_together_with_the_fused_optimizer():
    losses = train(ConvNet, IMAGES)[0]
    with enabled("fused-optimizer") as running:
        assert train(ConvNet, IMAGES)[0] == pytest.approx(losses, rel=1e-4)
        assert {outcome.status for outcome in running.outcomes} == {"applied"}


def test_refuses_a_model_whose_views_need_channels_first():
    plain = train(Viewing, IMAGES)[0]
    with enabled() as running:
        losses, model, _, _ = train(Viewing, IMAGES)
        assert running.outcomes[0].status == "refused"
        assert "view" in running.outcomes[0].why
        assert model.body.weight.is_contiguous()
    assert losses == plain


class ViewingLater(ConvNet):
    """The model takes a view behind a batch normalisation once it is told to."""

    flat = False

    def forward(self, x):
        y = self.body(x)
        return self.head(y.view(len(x), -1).view(len(x), 8, -1).mean(2) if self.flat else y.mean((2, 3)))


def test_a_view_taken_later_withdraws_it_and_repeats_that_call():
    def later(step, model, opt):
        model.flat = step >= 4

    plain = train(ViewingLater, IMAGES, between=later)
    with enabled() as running:
        ours = train(ViewingLater, IMAGES, between=later)
    assert running.outcomes[0].status == "withdrawn"
    assert "view" in running.outcomes[0].why
    assert ours[0] == pytest.approx(plain[0], rel=1e-4)
    assert torch.equal(ours[1].body[1].num_batches_tracked, plain[1].body[1].num_batches_tracked)


class Dropping(ConvNet):
    """The model applies dropout to images from a given step on."""

    p = 0.0

    def forward(self, x):
        y = self.body(x)
        return self.head((nn.functional.dropout(y, self.p) if self.p else y).mean((2, 3)))


@pytest.mark.parametrize(("first", "status"), [(0, "refused"), (5, "withdrawn")])
def test_dropout_over_images_drops_the_same_values(first, status):
    def later(step, model, opt):
        model.p = 0.5 if step + 1 >= first else 0.0

    plain = train(Dropping, IMAGES, between=later)
    with enabled() as running:
        ours = train(Dropping, IMAGES, between=later)
    assert running.outcomes[0].status == status
    assert "random numbers" in running.outcomes[0].why
    assert ours[0] == pytest.approx(plain[0], rel=1e-4)
    assert torch.equal(ours[3], plain[3])
    for name, value in plain[1].state_dict().items():
        torch.testing.assert_close(value, ours[1].state_dict()[name], rtol=1e-3, atol=1e-4)


def test_evaluation_runs_unchanged():
    def evaluate(step, model, opt):
        model.eval()
        assert not is_last(model.body(torch.ones(IMAGES)))
        model.train()

    with enabled() as running:
        train(ConvNet, IMAGES, between=evaluate)
    assert running.outcomes[0].status == "applied"


def test_single_channel_images_keep_the_layout():
    def grey():
        model = Seeing()
        model.body[0] = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        return model

    with enabled() as running:
        _, model, _, _ = train(grey, (8, 1, 8, 8))
        assert running.outcomes[0].status == "applied"
        assert is_last(model.seen)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.body(x)


def test_outputs_have_their_usual_layout():
    with enabled() as running:
        model, opt = Images(), None
        opt = adam(model)
        for _ in range(4):
            x = torch.randn(IMAGES)
            out = model(x)
            assert x.is_contiguous()
            assert out.view(len(x), -1).shape == (8, 144)
            out.sum().backward()
            opt.step()
        assert running.outcomes[0].status == "applied"


def test_has_no_effect_on_models_without_images():
    with enabled() as running:
        train(mlp, ROWS, steps=4)
        assert running.outcomes[0].status == "no effect"
