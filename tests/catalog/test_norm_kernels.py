"""norm-kernels redirects calls of batch normalisations and activations; the layers stay unchanged."""

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
def as_if_on_a_gpu(monkeypatch, answering, constants):
    """Layers count as on a GPU, and the kernels' source runs them on the CPU. Returns the kinds of the calls."""
    emulating_norms.on_cpu(monkeypatch)
    answering(taking, on_gpu=True)
    constants(taking, LARGE=1)
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
    """A hook reads the output of the normalisation."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.to(memory_format=torch.channels_last)

    def watch(self):
        self.body[1].register_forward_hook(lambda module, args, made: self.seen.append(made.detach().min().item()))


def test_layers_use_the_kernels_and_train_alike(site, as_if_on_a_gpu):
    site.closed = True
    expected, theirs, _, _ = train(last, IMAGES, steps=8)
    assert as_if_on_a_gpu == []
    site.closed = False
    losses, module, _, _ = train(last, IMAGES, steps=8)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert site.outcome.status == "applied"
    assert site.outcome.why == "1 batch normalisations, 1 of them with the activation that follows"
    assert set(as_if_on_a_gpu) == {"relu"}
    assert len(as_if_on_a_gpu) >= 5  # once the root is known
    assert torch.allclose(module.body[1].running_var, theirs.body[1].running_var, rtol=1e-5)
    assert module.body[1].num_batches_tracked == 8
    assert type(module.body[1]) is nn.BatchNorm2d
    assert type(module.body[2]) is nn.ReLU


def test_values_read_between_layers_are_correct(site, as_if_on_a_gpu):
    def between(step, model, _):
        if step == 5:
            model.watch()

    _, module, _, _ = train(Watched, IMAGES, steps=8, between=between)
    assert as_if_on_a_gpu[-1] == "none"
    assert min(module.seen) < 0


class OneByOne(ConvNet):
    """The model runs the layers one by one and keeps the minimum of each output."""

    def __init__(self):
        super().__init__()
        self.least = []
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        for block in self.body:
            x = block(x)
            self.least.append(x.min().item())
        return self.head(torch.relu(x).mean((2, 3)))


def test_layers_run_one_by_one_keep_their_own_activation(site, as_if_on_a_gpu):
    _, module, _, _ = train(OneByOne, IMAGES, steps=6)
    assert "1 of them with the activation that follows" in site.outcome.why
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
    """Checkpoints end between the normalisation and its activation."""

    def __init__(self):
        super().__init__()
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        made = torch.utils.checkpoint.checkpoint_sequential(self.body, 2, x, use_reentrant=False)
        return self.head(torch.relu(made).mean((2, 3)))


@pytest.mark.parametrize(("model_of", "kinds"), [(Checkpointed, {"relu"}), (Pieces, set())])
def test_supports_activation_checkpointing(site, as_if_on_a_gpu, model_of, kinds):
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
def test_supports_models_that_change_later(site, as_if_on_a_gpu, change):
    def between(step, model, _):
        if step == 4:
            change(model)

    site.closed = True
    expected, _, _, _ = train(last, IMAGES, steps=8, between=between)
    site.closed = False
    losses, _, _, _ = train(last, IMAGES, steps=8, between=between)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert "relu" in as_if_on_a_gpu


def test_cuda_graphs_records_the_kernels(site, as_if_on_a_gpu, constants):
    """cuda-graphs compares its recording with the eager model, so both must use the kernels."""
    constants(taking, LARGE=1 << 22)
    site.alongside = frozenset({"cuda-graphs"})
    beside = Site("cuda-graphs", entries()["cuda-graphs"].code, None, torch, site.seams, site._root_discovery)
    graphs = Graphs(beside, EmulatedRecorder())
    expected, theirs, _, _ = train(last, IMAGES, steps=16)  # cuda-graphs' entry is not at work yet
    as_if_on_a_gpu.clear()
    graphs.begin()
    losses, module, _, _ = train(last, IMAGES, steps=16)
    assert (site.outcome.status, beside.outcome.status) == ("applied", "applied"), beside.outcome
    assert graphs.recorder.replays["forward"] >= 8
    assert set(as_if_on_a_gpu) == {"relu"}
    assert losses == pytest.approx(expected, rel=1e-5)
    assert module.body[1].num_batches_tracked == theirs.body[1].num_batches_tracked
    beside.close()


def test_a_wrong_call_raises_torchs_own_error(site, as_if_on_a_gpu):
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
    assert not [warning.filename for warning in recwarn if warning.filename.startswith(ours)]
    assert as_if_on_a_gpu == []
    assert torch.allclose(traced(x), module(x), atol=1e-6)
    assert torch.allclose(scripted.eval()(x), module.eval()(x), atol=1e-6)


def test_only_layers_of_a_root_use_the_kernels(site, as_if_on_a_gpu):
    train(last, IMAGES, steps=4)
    as_if_on_a_gpu.clear()
    other = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU())
    other(torch.randn(2, 8, 4, 4).to(memory_format=torch.channels_last))
    assert as_if_on_a_gpu == []


@pytest.mark.parametrize(("alongside", "calls"), [((), 0), (("cuda-graphs",), 4)])
def test_small_layers_use_the_kernels_only_under_graphs_and_for_a_while(
    site, as_if_on_a_gpu, constants, alongside, calls
):
    constants(taking, LARGE=1 << 22, PATIENCE=3)
    site.alongside = frozenset(alongside)

    def between(step, model, _):
        model.eval()(torch.randn(IMAGES).to(memory_format=torch.channels_last))  # evaluations are not counted
        model.train()

    train(last, IMAGES, steps=12, between=between)
    assert as_if_on_a_gpu == ["relu"] * calls
    assert (site.outcome.status, site.outcome.why[:24]) == ("withdrawn", "all its layers are small")


def test_evaluation_uses_torchs_own_layers(site, as_if_on_a_gpu):
    _, module, _, _ = train(last, IMAGES, steps=4)
    as_if_on_a_gpu.clear()
    module.eval()
    x = torch.randn(IMAGES).to(memory_format=torch.channels_last)
    found = module(x)
    site.close()
    assert torch.equal(found, module(x))
    assert as_if_on_a_gpu == []


def test_a_saved_model_contains_only_torch_classes(site, as_if_on_a_gpu):
    _, module, _, _ = train(last, IMAGES, steps=4)
    saved = io.BytesIO()
    torch.save(module.body, saved)
    assert b"hotlap" not in saved.getvalue()


def test_closing_restores_torchs_forward(site, as_if_on_a_gpu):
    classes = (nn.modules.batchnorm._BatchNorm, nn.ReLU, nn.Sequential)
    before = [dict(vars(norm)) for norm in classes]
    train(last, IMAGES, steps=4)
    assert [dict(vars(norm)) for norm in classes] != before
    site.close()
    assert [dict(vars(norm)) for norm in classes] == before


def test_has_no_effect_on_models_without_batch_norm(site):
    train(mlp, ROWS, steps=4)
    assert site.outcome.why == "the model has no BatchNorm2d"


def test_has_no_effect_on_a_cpu(site):
    train(last, IMAGES, steps=4)
    assert (site.outcome.status, site.outcome.why) == ("no effect", "its BatchNorm2d layers are not on a GPU")


def test_estimates_its_gain():
    detect = entries()["norm-kernels"].detect
    seen = observation(
        models=(model(device="cuda:0", layers={"BatchNorm2d": 2}),),
        device=device(8.0, kernels=(kernel("memory", 0.5),)),
    )
    assert detect(seen).most == pytest.approx(0.4)
    assert detect(observation()) is None
