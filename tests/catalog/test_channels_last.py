"""channels-last: weights, gradients and optimizer state move together, and nobody outside notices."""

import copy
import io

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


def is_last(tensor):
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


@pytest.mark.parametrize("optimizer", [adam, fused, momentum])
def test_trains_to_the_same_numbers(optimizer):
    losses, model, _, rng = train(lambda: ConvNet(dropout=0.3), IMAGES, optimizer=optimizer)
    with enabled() as under:
        again, twin, opt, rng_again = train(lambda: ConvNet(dropout=0.3), IMAGES, optimizer=optimizer)
        assert under.outcomes[0].status == "applied", under.outcomes[0].why
        assert is_last(twin.body[3].weight)
        assert all(is_last(one) for one in opt.state[twin.body[3].weight].values() if one.dim() == 4)

    assert again == pytest.approx(losses, rel=1e-4)
    assert torch.equal(rng, rng_again)
    assert twin.body[3].weight.is_contiguous()  # taken back
    assert all(one.is_contiguous() for one in opt.state[twin.body[3].weight].values())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name], rtol=1e-3, atol=1e-4)


def test_it_goes_with_the_fused_optimizer_entry():
    losses = train(ConvNet, IMAGES)[0]
    with enabled("fused-optimizer") as under:
        assert train(ConvNet, IMAGES)[0] == pytest.approx(losses, rel=1e-4)
        assert {one.status for one in under.outcomes} == {"applied"}


def test_checkpoints_load_either_way():
    """A fused step over two layouts would compute wrong numbers."""
    with enabled():
        _, model, opt, _ = train(ConvNet, IMAGES, optimizer=fused)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    assert all(one.is_contiguous() for state in saved["optimizer"]["state"].values() for one in state.values())

    def resumed(make_optimizer):
        def load(step, model, opt):
            if step == 4:
                model.load_state_dict(saved["model"])
                opt.load_state_dict(copy.deepcopy(saved["optimizer"]))  # else later steps would write into it

        return train(ConvNet, IMAGES, optimizer=make_optimizer, between=load)[0]

    plain = resumed(fused)
    assert plain == pytest.approx(resumed(adam), rel=1e-4)
    with enabled():
        assert resumed(fused) == pytest.approx(plain, rel=1e-4)


def test_a_view_that_needs_channels_first_is_refused():
    plain = train(Viewing, IMAGES)[0]
    with enabled() as under:
        losses, model, _, _ = train(Viewing, IMAGES)
        assert under.outcomes[0].status == "refused"
        assert "view" in under.outcomes[0].why
        assert model.body.weight.is_contiguous()
    assert losses == plain


class ViewingInEvaluation(ConvNet):
    def forward(self, x):
        y = self.body(x)
        return self.head(torch.relu(y).mean((2, 3))) if self.training else y.view(len(x), -1)


def test_a_view_in_evaluation_takes_it_back():
    def evaluate(step, model, opt):
        if step == 5:
            model.eval()
            assert model(torch.ones(IMAGES)).shape == (8, 8 * 36)
            model.train()

    with enabled() as under:
        train(ViewingInEvaluation, IMAGES, between=evaluate)
        assert under.outcomes[0].status == "withdrawn"


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.body(x)


def test_outputs_have_their_usual_layout():
    with enabled() as under:
        model, opt = Images(), None
        opt = adam(model)
        for _ in range(4):
            x = torch.randn(IMAGES)
            out = model(x)
            assert x.is_contiguous()
            assert out.view(len(x), -1).shape == (8, 144)
            out.sum().backward()
            opt.step()
        assert under.outcomes[0].status == "applied"


def test_models_without_images():
    with enabled() as under:
        train(mlp, ROWS, steps=4)
        assert under.outcomes[0].status == "no effect"
