"""inplace-activations gives the same bits and leaves nothing in the model."""

import io
from types import SimpleNamespace

import pytest
import torch
from catalog.compute_models import IMAGES, ROWS, ConvNet, mlp, train
from torch import nn
from torch.nn import functional

import hotlap
from hotlap.catalog.inplace_activations.apply import InPlace


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


def enabled():
    return hotlap.enable(None, with_=["inplace-activations"])


@pytest.fixture
def in_place(monkeypatch):
    """Records for each call of an activation whether it overwrote its input."""
    seen = []
    relu = functional.relu
    monkeypatch.setattr(functional, "relu", lambda x, inplace=False: seen.append(inplace) or relu(x, inplace=inplace))
    return seen


def dropped(p):
    return lambda: nn.Sequential(nn.Linear(16, 8), nn.Dropout(p), nn.ReLU(), nn.Linear(8, 4))


DROPPED = [(dropped(0.5), ROWS), (dropped(0.0), ROWS)]


@pytest.mark.parametrize(("make", "shape"), [(mlp, ROWS), (lambda: ConvNet(dropout=0.5), IMAGES), *DROPPED])
def test_losses_statistics_and_random_states_are_the_same(make, shape):
    losses, model, _, rng = train(make, shape)
    with enabled() as running:
        ours, twin, _, rng_again = train(make, shape)
        [outcome] = running.outcomes

    assert outcome.status == "applied", outcome.why
    assert ours == losses
    assert torch.equal(rng, rng_again)
    for name, value in model.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name


def test_activations_work_in_place_only_while_the_model_trains(in_place):
    with enabled() as running:
        _, model, _, _ = train(mlp, ROWS)
        assert running.outcomes[0].why == "2 activations directly after layers"
        assert not any(module.inplace for module in model.modules() if isinstance(module, nn.ReLU))
        saved = io.BytesIO()
        torch.save(model, saved)
        assert in_place[:2] == [False, False]
        assert in_place[-2:] == [True, True]
        model.eval()(torch.ones(ROWS))
        assert in_place[-2:] == [False, False]
    assert b"hotlap" not in saved.getvalue()


class OneByOne(nn.Module):
    """The model runs the layers of its Sequential one by one and keeps each output from some step on."""

    def __init__(self):
        super().__init__()
        self.layers = mlp()
        self.keeps = False

    def forward(self, x):
        if not self.keeps:
            return self.layers(x)
        made = [x := layer(x) for layer in self.layers]
        return made[-1] + sum(output.mean() for output in made)


def test_layers_called_one_by_one_keep_every_output(in_place):
    def later(step, model, opt):
        model.keeps = step >= 4

    plain = train(OneByOne, ROWS, between=later)[0]
    in_place.clear()
    with enabled():
        assert train(OneByOne, ROWS, between=later)[0] == plain
    assert in_place[8] is True
    assert in_place[10:] == [False] * 6


class Shared(nn.Sequential):
    """The activation follows a layer and is also used elsewhere."""

    def __init__(self):
        super().__init__(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
        self.other = nn.Sequential(nn.Identity(), self[1])


class Overriding(nn.Sequential):
    def forward(self, x):
        first, act, last = self
        x = first(x)
        return last(x + act(x))


VISIBLE_ELSEWHERE = {
    "the batch itself": lambda: nn.Sequential(nn.ReLU(), nn.Linear(16, 4)),
    "what an identity passes on": lambda: nn.Sequential(nn.Linear(16, 4), nn.Identity(), nn.ReLU()),
    "an activation used twice": Shared,
    "a forward of its own": lambda: Overriding(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)),
    "an activation whose gradient needs its input": lambda: nn.Sequential(nn.Linear(16, 4), nn.ELU()),
    "a slope that turns the sign": lambda: nn.Sequential(nn.Linear(16, 4), nn.LeakyReLU(-0.1)),
}


@pytest.mark.parametrize("what", VISIBLE_ELSEWHERE)
def test_tensors_visible_elsewhere_are_not_overwritten(what):
    plain = train(VISIBLE_ELSEWHERE[what], ROWS)[0]
    with enabled() as running:
        assert train(VISIBLE_ELSEWHERE[what], ROWS)[0] == plain
        assert running.outcomes[0].status == "no effect", running.outcomes[0].why


def test_a_hook_or_another_layer_disables_it(in_place):
    held = []

    def hooked(step, model, opt):
        if step == 4:
            model[0].register_forward_hook(lambda module, given, made: held.append(made))

    with enabled():
        train(mlp, ROWS, between=hooked)
    assert in_place[8] is True
    assert in_place[10:] == [False] * 6
    assert any((tensor < 0).any() for tensor in held)


def test_a_trace_shows_the_layers_of_the_program():
    with enabled():
        root = mlp()
        train(lambda: root, ROWS)
        before = torch.zeros(2, root[0].in_features)
        assert "relu_" not in torch.jit.trace(root, before).code


STAYS_AWAY = {(True, True): True, (True, False): False, (False, True): False}


@pytest.mark.parametrize(("alongside", "on_gpu"), STAYS_AWAY)
def test_has_no_effect_beside_cuda_graphs_on_a_gpu(alongside, on_gpu):
    outcomes, taken, root = [], [], mlp()
    root.parameters = lambda: [SimpleNamespace(is_cuda=on_gpu)]
    site = SimpleNamespace(
        torch=torch, alongside={"cuda-graphs"} if alongside else set(), no_effect=outcomes.append, applied=taken.append,
        ledger=SimpleNamespace(later=lambda args: None), replace=lambda *args: None,
    )  # fmt: skip
    InPlace(site).known(root)
    assert bool(outcomes) == STAYS_AWAY[alongside, on_gpu]
    assert bool(taken) != bool(outcomes)
