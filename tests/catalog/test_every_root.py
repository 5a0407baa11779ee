"""Entries apply to every model a program trains: both networks of a pair, each fold, each model trained in turn."""

from __future__ import annotations

import gc
import sys
import weakref
from importlib import import_module

import pytest
import torch
from catalog.compute_models import IMAGES, ROWS, SERIES, Block, Blocks, ConvNet, Recurrent, Viewing, mlp, train
from torch import nn

import hotlap
from hotlap.catalog.autocast import hardware
from hotlap.catalog.entry import Entry
from hotlap.patch.guard import Guard
from hotlap.patch.roots import Roots
from hotlap.patch.seams import Seams
from hotlap.records.plan import Risk
from hotlap.runtime import root_discovery
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    yield
    hotlap.disable()


@pytest.fixture
def site():
    entry = Entry(code="X101", title="", risk=Risk.EXACT, apply=lambda site: None, detect=lambda seen: None)
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    made = Site("planted", entry.code, None, torch, seams, RootDiscovery(seams))
    yield made
    made.close()
    seams.close()


@pytest.fixture
def root_names(site):
    """Returns the names of the roots in the order they are announced."""
    names = []
    site.when_root(lambda root: names.append(type(root).__name__))
    return names


@pytest.fixture
def walks(spied):
    """Counts the walks over all objects."""
    return spied(Roots, "search")


class Generator(nn.Linear):
    pass


class Judge(nn.Linear):
    pass


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def duel(generator, judge, rounds, judgements=1):
    """Trains adversarially: each network has its own optimizer, and each step calls both networks."""
    of_judge = torch.optim.SGD(judge.parameters(), lr=0.1)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.1)
    for _ in range(rounds):
        for _ in range(judgements):
            step(of_judge, judge(generator(torch.ones(2, 3)).detach()).sum())
        step(of_generator, judge(generator(torch.ones(2, 3))).sum())


# Which roots are announced, and when


@pytest.mark.parametrize("judgements", [1, 5, 20])
def test_both_networks_of_an_adversarial_training_are_found_once(root_names, judgements):
    duel(Generator(3, 3), Judge(3, 1), 4, judgements)
    assert root_names == ["Judge", "Generator"]


def test_parts_of_an_uncalled_module_are_found_by_their_own_optimizers(root_names):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator, self.judge = Generator(3, 3), Judge(3, 1)

    both = Both()
    duel(both.generator, both.judge, 6)
    assert sorted(root_names) == ["Generator", "Judge"]


def test_the_model_of_each_fold_is_found(root_names):
    for make in (ConvNet, Blocks, ConvNet):
        train(make, IMAGES if make is ConvNet else ROWS, steps=4)
    assert root_names == ["ConvNet", "Blocks", "ConvNet"]


def test_a_model_with_two_optimizers_is_found_once(root_names):
    model = mlp()
    first, last = (torch.optim.SGD(model[number].parameters(), lr=0.1) for number in (0, 4))
    for _ in range(5):
        model(torch.randn(ROWS)).sum().backward()
        first.step()
        last.step()
    assert root_names == ["Sequential"]


def test_a_new_optimizer_for_a_known_model_starts_no_search(root_names, walks):
    model = mlp()
    for _ in range(3):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            step(optimizer, model(torch.randn(ROWS)).sum())
    assert root_names == ["Sequential"]
    assert len(walks) == 1


def test_a_program_that_keeps_creating_models_is_not_held_up(root_names, walks):
    steps = 0
    for _ in range(3 * root_discovery.AT_ONCE):
        model = Judge(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            step(optimizer, model(torch.ones(2, 3)).sum())
            steps += 1
    assert root_discovery.AT_ONCE <= len(walks) <= root_discovery.AT_ONCE + steps // root_discovery.EVERY + 1
    assert len(walks) - 1 <= len(root_names) <= len(walks)


def test_models_and_optimizers_are_not_kept_alive(site):
    site.when_root(lambda root: site.stand_in_for(root, lambda original, module, args, kwargs: original(*args)))
    references = []
    for _ in range(3):
        _, model, optimizer, _ = train(mlp, ROWS, steps=4)
        references += [weakref.ref(model), weakref.ref(optimizer)]
        del model, optimizer
    gc.collect()
    assert [reference() for reference in references] == [None] * 6


def test_a_call_does_not_get_deeper_with_every_model(site):
    """Python ends a program whose calls nest a thousand deep."""
    depths = []

    def instead(original, module, args, kwargs):
        frame, depth = sys._getframe(), 0
        while frame is not None:
            frame, depth = frame.f_back, depth + 1
        depths.append(depth)
        return original(*args, **kwargs)

    site.when_root(lambda root: site.stand_in_for(root, instead))
    for _ in range(5):
        train(mlp, ROWS, steps=4)
    assert len(depths) == 5 * 2
    assert len(set(depths)) == 1


# What entries do for the second root


def is_last(tensor):
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


@pytest.fixture
def laid_out(monkeypatch):
    """Records for each call of an image model whether its last layer but one received channels-last memory."""
    seen, relu = [], torch.relu
    monkeypatch.setattr(torch, "relu", lambda x: seen.append(is_last(x)) or relu(x))
    return seen


def test_channels_last_applies_to_each_root(laid_out):
    plain = train(ConvNet, IMAGES)[0]
    with hotlap.enable(None, with_=["channels-last"]):
        for _ in range(3):
            laid_out.clear()
            losses = train(ConvNet, IMAGES)[0]
            assert losses == pytest.approx(plain, rel=1e-4)
            assert laid_out[0] is False
            assert laid_out[-1] is True


def test_channels_last_stays_on_one_root_where_another_cannot_have_it(laid_out):
    with hotlap.enable(None, with_=["channels-last"]) as enabled:
        _, first, _, _ = train(ConvNet, IMAGES)
        train(Viewing, IMAGES)
        first(torch.ones(IMAGES))
        assert laid_out[-1] is True
        assert enabled.outcomes[0].status == "applied"


def kept_tensors(model):
    """Returns how many tensors one call keeps for the backward."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(1) or tensor, lambda tensor: tensor):
        model(torch.randn(8, 16)).sum()
    return len(kept)


class Counting(Block):
    """The block counts its calls, so it must not be recomputed."""

    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x)


class CountingBlocks(Blocks):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Counting() for _ in range(2))


def test_blocks_are_checkpointed_in_each_root_and_refusals_affect_one():
    losses, model, _, _ = train(Blocks, ROWS)
    plain = kept_tensors(model)
    with hotlap.enable(None, with_=["activation-checkpointing=always"]) as enabled:
        trained = [train(make, ROWS) for make in (Blocks, Blocks, CountingBlocks)]
        assert [run[0] for run in trained[:2]] == [losses] * 2
        assert all(kept_tensors(model) < plain for _, model, _, _ in trained[:2])
        assert "__call__" not in vars(Counting)
        assert enabled.outcomes[0].status == "applied"
    assert "__call__" not in vars(Block)


def test_autocast_covers_each_root(answering):
    answering(hardware, supports=True)
    plain = train(mlp, ROWS)[0]
    with hotlap.enable(None, with_=["autocast=bf16"]):
        first, second = (train(mlp, ROWS)[0] for _ in range(2))
    assert first == second
    assert first != plain
    assert first == pytest.approx(plain, rel=0.05)


def test_weights_of_each_recurrent_model_are_flattened(site, monkeypatch, answering):
    recurrent = import_module("hotlap.catalog.recurrent.apply")
    flattened = []
    answering(recurrent, on_gpu=True)
    monkeypatch.setattr(recurrent, "is_flat", lambda layer: layer in flattened)
    monkeypatch.setattr(nn.LSTM, "flatten_parameters", lambda layer: flattened.append(layer))
    recurrent.apply(site)
    for _ in range(2):
        made = lambda number, *_: number == 0 and flattened.clear()  # noqa: E731 making and moving it flattens, too
        _, model, _, _ = train(Recurrent, SERIES, steps=4, between=made)
        assert flattened == [model.lstm]


def test_the_autotuner_withdraws_for_a_second_model_with_changing_shapes(site):
    import_module("hotlap.catalog.cudnn_autotuner.apply").apply(site)
    train(ConvNet, IMAGES)
    assert torch.backends.cudnn.benchmark
    train(ConvNet, lambda step: (8, 3, 8, 8 + step), steps=8)
    assert not torch.backends.cudnn.benchmark
    assert site.outcome.status == "withdrawn"


@pytest.fixture
def compile_quickly(monkeypatch):
    """Dynamo is real, but its graphs run as they are. Returns the forwards it was given."""
    given = []

    def compiled(torch, function, mode):
        given.append(function)
        return torch.compile(function, dynamic=False, backend="eager")

    monkeypatch.setattr(import_module("hotlap.catalog.compile.apply"), "compiled", compiled)
    torch._dynamo.reset()
    yield given
    torch._dynamo.reset()


class Wide(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, x):
        return self.layers(x)


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_the_next_fold_reuses_code_compiled_for_the_first(compile_quickly):
    plain = train(Wide, ROWS)[0]
    with hotlap.enable(None, with_=["compile"]) as enabled:
        assert train(Wide, ROWS)[0] == pytest.approx(plain)
        made = graphs()
        assert made > 0
        assert train(Wide, ROWS)[0] == pytest.approx(plain)
        assert (enabled.outcomes[0].status, graphs()) == ("applied", made)
    assert compile_quickly == [Wide.forward]


def test_a_second_class_is_compiled_too(compile_quickly):
    with hotlap.enable(None, with_=["compile"]) as enabled:
        train(Wide, ROWS)
        train(Blocks, ROWS)
        assert enabled.outcomes[0].status == "applied"
        assert enabled.outcomes[0].why.startswith("Blocks")
    assert compile_quickly == [Wide.forward, Blocks.forward]


def test_models_with_more_shapes_than_dynamo_allows_run_uncompiled(compile_quickly, answering):
    answering(import_module("hotlap.catalog.compile.apply"), most_recompiles=2)
    with hotlap.enable(None, with_=["compile"]) as enabled:
        for width in (4, 8, 16):
            plain_graphs = graphs()
            train(lambda width=width: Wide(width), ROWS)
            assert (graphs() > plain_graphs) == (width < 16)
        assert enabled.outcomes[0].status == "applied"
