"""norm-kernels: calls of batch normalisations and activations go another way; the layers stay as they are."""

import importlib
import io
from pathlib import Path

import pytest
import torch
from catalog.compute_models import IMAGES, ROWS, ConvNet, mlp, train
from observations import device, kernel, model, observation
from torch import nn

import hotlap
from hotlap.catalog import entries
from hotlap.catalog.cuda_graphs.apply import Graphs
from hotlap.kernels.norms import launches, layer
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site
from tests.catalog.emulated_graphs import EmulatedRecorder
from tests.kernels import emulating_norms

taking = importlib.import_module("hotlap.catalog.norm_kernels.apply")


@pytest.fixture
def site():
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    made = Site("norm-kernels", entries()["norm-kernels"].code, None, torch, seams, RootDiscovery(seams))
    taking.apply(made)
    yield made
    made.close()
    seams.close()


@pytest.fixture
def as_if_on_a_gpu(monkeypatch):
    """The layers count as if they were there, and are run by the kernels' source on the CPU; kinds of the calls."""
    emulating_norms.on_cpu(monkeypatch)
    monkeypatch.setattr(taking, "on_gpu", lambda _: True)
    monkeypatch.setattr(taking, "LARGE", 1)
    planned = []

    def plan_for(norm, x, kind):
        if not norm.training or layer.why_not(norm, x, "silu") is not None:
            return None
        planned.append(kind)
        return launches.planned(launches.Shape(x.numel() // x.shape[1], x.shape[1], x.dtype, kind, 0))

    monkeypatch.setattr(layer, "plan_for", plan_for)
    return planned


def last():
    return ConvNet().to(memory_format=torch.channels_last)


class Watched(ConvNet):
    """Somebody looks at what the normalisation makes."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.to(memory_format=torch.channels_last)

    def watch(self):
        self.body[1].register_forward_hook(lambda module, args, made: self.seen.append(made.detach().min().item()))


def test_calls_go_our_way_and_train_alike(site, as_if_on_a_gpu):
    site.closed = True
    expected, theirs, _, _ = train(last, IMAGES, steps=8)
    assert as_if_on_a_gpu == []
    site.closed = False
    losses, module, _, _ = train(last, IMAGES, steps=8)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert site.outcome.status == "applied"
    assert site.outcome.why == "1 batch normalisations, 1 with the activation behind them"
    assert set(as_if_on_a_gpu) == {"relu"}
    assert len(as_if_on_a_gpu) >= 5  # from the moment the root is known
    assert torch.allclose(module.body[1].running_var, theirs.body[1].running_var, rtol=1e-5)
    assert module.body[1].num_batches_tracked == 8
    assert type(module.body[1]) is nn.BatchNorm2d
    assert type(module.body[2]) is nn.ReLU


def test_who_looks_between_them_sees_what_is_there(site, as_if_on_a_gpu):
    def between(step, model, _):
        if step == 5:
            model.watch()

    _, module, _, _ = train(Watched, IMAGES, steps=8, between=between)
    assert as_if_on_a_gpu[-1] == "none"
    assert min(module.seen) < 0


class OneByOne(ConvNet):
    """Runs the layers by itself, and keeps the least that each makes."""

    def __init__(self):
        super().__init__()
        self.least = []
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        for one in self.body:
            x = one(x)
            self.least.append(x.min().item())
        return self.head(torch.relu(x).mean((2, 3)))


def test_layers_that_are_run_one_by_one_keep_their_own_activation(site, as_if_on_a_gpu):
    _, module, _, _ = train(OneByOne, IMAGES, steps=6)
    assert "1 with the activation behind" in site.outcome.why
    assert set(as_if_on_a_gpu) == {"none"}
    assert all(least < 0 for least in module.least[1::4])
    assert all(least == 0 for least in module.least[2::4])


class Checkpointed(ConvNet):
    def __init__(self):
        super().__init__()
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        made = torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)
        return self.head(torch.relu(made).mean((2, 3)))


class Pieces(ConvNet):
    """Checkpoints that end between the normalisation and its activation."""

    def __init__(self):
        super().__init__()
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        made = torch.utils.checkpoint.checkpoint_sequential(self.body, 2, x, use_reentrant=False)
        return self.head(torch.relu(made).mean((2, 3)))


@pytest.mark.parametrize(("model_of", "kinds"), [(Checkpointed, {"relu"}), (Pieces, set())])
def test_a_model_may_be_checkpointed(site, as_if_on_a_gpu, model_of, kinds):
    site.closed = True
    expected, theirs, _, _ = train(model_of, IMAGES, steps=6)
    site.closed = False
    losses, module, _, _ = train(model_of, IMAGES, steps=6)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert site.outcome.status == "applied"
    assert module.body[1].num_batches_tracked == theirs.body[1].num_batches_tracked
    assert kinds <= set(as_if_on_a_gpu)


def replace_activation(model):
    model.body[2] = nn.GELU()


def insert_layer(model):
    model.body.insert(2, nn.Tanh())


def patch_activation(model):
    model.body[2].forward = torch.tanh


@pytest.mark.parametrize("change", [replace_activation, insert_layer, patch_activation])
def test_a_model_may_change_later(site, as_if_on_a_gpu, change):
    def between(step, model, _):
        if step == 4:
            change(model)

    site.closed = True
    expected, _, _, _ = train(last, IMAGES, steps=8, between=between)
    site.closed = False
    losses, _, _, _ = train(last, IMAGES, steps=8, between=between)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert "relu" in as_if_on_a_gpu


def test_what_cuda_graphs_records_are_the_kernels(site, as_if_on_a_gpu, monkeypatch):
    """It compares what it recorded with the model as it is: they must run the same way."""
    monkeypatch.setattr(taking, "LARGE", 1 << 22)
    site.alongside = frozenset({"cuda-graphs"})
    beside = Site("cuda-graphs", entries()["cuda-graphs"].code, None, torch, site.seams, site._moments)
    graphs = Graphs(beside, EmulatedRecorder())
    expected, theirs, _, _ = train(last, IMAGES, steps=16)  # whose entry is not at work yet
    as_if_on_a_gpu.clear()
    graphs.begin()
    losses, module, _, _ = train(last, IMAGES, steps=16)
    assert (site.outcome.status, beside.outcome.status) == ("applied", "applied"), beside.outcome
    assert graphs.recorder.replays["forward"] >= 8
    assert set(as_if_on_a_gpu) == {"relu"}
    assert losses == pytest.approx(expected, rel=1e-5)
    assert module.body[1].num_batches_tracked == theirs.body[1].num_batches_tracked
    beside.close()


def test_a_wrong_call_is_the_users_error(site, as_if_on_a_gpu):
    _, module, _, _ = train(last, IMAGES, steps=4)
    for given in ((), (None,), (torch.randn(2, 5, 4, 4).to(memory_format=torch.channels_last),)):
        with pytest.raises((TypeError, AttributeError, RuntimeError)):
            module.body[1](*given)
    assert site.outcome.status == "applied"


def test_a_model_can_be_scripted_and_traced(site, as_if_on_a_gpu, recwarn):
    _, module, _, _ = train(last, IMAGES, steps=4)
    as_if_on_a_gpu.clear()
    x = torch.randn(IMAGES).to(memory_format=torch.channels_last)
    recwarn.clear()
    traced, scripted = torch.jit.trace(module, x, check_trace=False), torch.jit.script(module)
    ours = str(Path(hotlap.__file__).parent)
    assert not [one.filename for one in recwarn if one.filename.startswith(ours)]
    assert as_if_on_a_gpu == []
    assert torch.allclose(traced(x), module(x), atol=1e-6)
    assert torch.allclose(scripted.eval()(x), module.eval()(x), atol=1e-6)


def test_only_layers_of_a_root_go_our_way(site, as_if_on_a_gpu):
    train(last, IMAGES, steps=4)
    as_if_on_a_gpu.clear()
    other = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU())
    other(torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last))
    assert as_if_on_a_gpu == []


@pytest.mark.parametrize(("alongside", "calls"), [((), 0), (("cuda-graphs",), 4)])
def test_small_layers_are_taken_for_graphs_only_and_for_a_while(site, as_if_on_a_gpu, monkeypatch, alongside, calls):
    monkeypatch.setattr(taking, "LARGE", 1 << 22)
    monkeypatch.setattr(taking, "PATIENCE", 3)
    site.alongside = frozenset(alongside)

    def between(step, model, _):
        model.eval()(torch.randn(IMAGES).to(memory_format=torch.channels_last))  # evaluations are not counted
        model.train()

    train(last, IMAGES, steps=12, between=between)
    assert as_if_on_a_gpu == ["relu"] * calls
    assert (site.outcome.status, site.outcome.why[:20]) == ("withdrawn", "all layers are small")


def test_in_evaluation_it_is_torch(site, as_if_on_a_gpu):
    _, module, _, _ = train(last, IMAGES, steps=4)
    as_if_on_a_gpu.clear()
    module.eval()
    x = torch.randn(IMAGES).to(memory_format=torch.channels_last)
    found = module(x)
    site.close()
    assert torch.equal(found, module(x))
    assert as_if_on_a_gpu == []


def test_what_is_saved_is_torchs(site, as_if_on_a_gpu):
    _, module, _, _ = train(last, IMAGES, steps=4)
    saved = io.BytesIO()
    torch.save(module.body, saved)
    assert b"hotlap" not in saved.getvalue()


def test_closing_it_puts_torchs_forward_back(site, as_if_on_a_gpu):
    classes = (nn.modules.batchnorm._BatchNorm, nn.ReLU, nn.Sequential)
    before = [dict(vars(one)) for one in classes]
    train(last, IMAGES, steps=4)
    assert [dict(vars(one)) for one in classes] != before
    site.close()
    assert [dict(vars(one)) for one in classes] == before


def test_models_without_them(site):
    train(mlp, ROWS, steps=4)
    assert site.outcome.why == "the model has no BatchNorm2d"


def test_on_a_cpu_there_is_nothing_to_do(site):
    train(last, IMAGES, steps=4)
    assert (site.outcome.status, site.outcome.why) == ("no effect", "its batch normalisations are not on a GPU")


def test_detect():
    detect = entries()["norm-kernels"].detect
    seen = observation(
        models=(model(device="cuda:0", layers={"BatchNorm2d": 2}),),
        device=device(8.0, kernels=(kernel("memory", 0.5),)),
    )
    assert detect(seen).most == pytest.approx(0.4)
    assert detect(observation()) is None
