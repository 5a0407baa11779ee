"""inplace-activations: the same bits, and nothing left in the model."""

import importlib
import io
from types import SimpleNamespace

import pytest
import torch
from catalog.compute_models import IMAGES, ROWS, ConvNet, mlp, train
from torch import nn

import hotlap


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


def enabled():
    return hotlap.enable(None, with_=["inplace-activations"])


def in_place_during(make, shape):
    """Which activations were in place while the model ran, by step."""
    seen = []

    def watching():
        model = make()
        first = model.forward

        def forward(x):
            seen.append([one.inplace for one in model.modules() if isinstance(one, nn.ReLU)])
            return first(x)

        model.forward = forward
        return model

    train(watching, shape, steps=4)
    return seen


@pytest.mark.parametrize(("make", "shape"), [(mlp, ROWS), (lambda: ConvNet(dropout=0.5), IMAGES)])
def test_losses_statistics_and_random_states_are_the_same(make, shape):
    losses, model, _, rng = train(make, shape)
    with enabled() as under:
        again, twin, _, rng_again = train(make, shape)
        [outcome] = under.outcomes

    assert outcome.status == "applied", outcome.why
    assert again == losses
    assert torch.equal(rng, rng_again)
    for name, value in model.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name


def test_activations_work_in_place_only_while_the_model_trains():
    with enabled() as under:
        torch.manual_seed(0)
        _, model, _, _ = train(mlp, ROWS)
        assert under.outcomes[0].why == "2 of 2 activations, proven bit-equal on a batch"
        assert not any(one.inplace for one in model.modules() if isinstance(one, nn.ReLU))
        saved = io.BytesIO()
        torch.save(model, saved)
        seen = in_place_during(mlp, ROWS)  # another model, after that one
    assert seen[:2] == [[False, False]] * 2
    assert seen[-1] == [True, True]
    assert b"hotlap" not in saved.getvalue()


class Residual(nn.Module):
    """The first activation's input is needed again; the second's is not."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.needed, self.free = nn.ReLU(), nn.ReLU()

    def forward(self, x):
        x = self.a(x)
        return self.c(self.free(self.b(x + self.needed(x))))


def test_only_what_is_proven_is_kept():
    plain = train(Residual, ROWS)[0]
    with enabled() as under:
        assert train(Residual, ROWS)[0] == plain
        assert under.outcomes[0].why.startswith("1 of 2")


class OnInput(nn.Sequential):
    """In place, the first activation would change the user's own batch."""

    def __init__(self):
        super().__init__(nn.ReLU(), nn.Linear(16, 4))


def test_the_batch_is_not_overwritten():
    with enabled() as under:
        train(OnInput, ROWS)
        assert under.outcomes[0].status == "refused"


class Keeping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.act = nn.Linear(16, 4), nn.ReLU()

    def forward(self, x):
        self.features = self.layer(x)
        print("forward")
        return self.act(self.features)


def test_a_model_that_keeps_tensors_is_refused_and_prints_once_a_step(capsys):
    with enabled() as under:
        train(Keeping, ROWS, steps=5)
        assert under.outcomes[0].why == "its forward keeps attributes that might be overwritten"
    assert capsys.readouterr().out == "forward\n" * 5


def test_hooks_and_models_without_activations():
    def hooked():
        model = mlp()
        model[0].register_forward_hook(lambda *_: None)
        return model

    for make, status in [(hooked, "refused"), (lambda: nn.Linear(16, 4), "no effect")]:
        with enabled() as under:
            train(make, ROWS, steps=4)
            assert under.outcomes[0].status == status


STAYS_AWAY = {(True, True): True, (True, False): False, (False, True): False}


@pytest.mark.parametrize(("alongside", "on_gpu"), STAYS_AWAY)
def test_beside_graphs_on_a_gpu_it_stays_away(alongside, on_gpu, monkeypatch):
    considering = importlib.import_module("hotlap.catalog.inplace_activations.apply")
    monkeypatch.setattr(considering, "_why_not", lambda *_: None)
    said, taken, root = [], [], mlp()
    root.parameters = lambda: [SimpleNamespace(is_cuda=on_gpu)]
    site = SimpleNamespace(
        torch=torch, alongside={"cuda-graphs"} if alongside else set(), no_effect=said.append,
        stand_in_for=lambda *given: taken.append(given),
    )  # fmt: skip
    considering._consider(site, root)
    assert bool(said) == STAYS_AWAY[alongside, on_gpu]
    assert bool(taken) != bool(said)
