"""CUDA graphs are tested without CUDA: an emulated recorder replays by doing the work again into the same tensors.

All decisions, checks, copies and restorations are tested here to the bit; tests/cuda has what only a GPU can show.
"""

from __future__ import annotations

import gc
import inspect
import io
import logging
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from hotlap.catalog.cuda_graphs.detect import detect
from hotlap.catalog.cuda_graphs.graphed_module import GraphedRoot
from hotlap.catalog.cuda_graphs.recorder import CudaRecorder
from hotlap.catalog.cuda_graphs.rounding import is_as_uncertain, near
from hotlap.catalog.cuda_graphs.steady import Steady
from hotlap.catalog.fused_optimizer import proof
from tests.catalog.emulated_graphs import (
    EmulatedRecorder,
    Net,
    StubCuda,
    UpdatedByHand,
    adadelta,
    adagrad,
    adam,
    adamw,
    at_work,
    rmsprop,
    same,
    sgd,
    train,
)
from tests.observations import launch_bound, observation

graphs = pytest.fixture(at_work)


CASES = {
    "plain": {},
    "dropout": {"model": lambda: Net(0.5)},
    "clipping": {"clip": 0.05},
    "AdamW": {"optimizer": adamw, "clip": 0.1},
    "Adam": {"optimizer": adam},
    "RMSprop": {"optimizer": rmsprop, "clip": 0.1},
    "Adadelta": {"optimizer": adadelta, "evaluate": True},
    "Adagrad": {"optimizer": adagrad, "tail": True},
    "learning rate by step": {"schedule": lambda optim: torch.optim.lr_scheduler.ExponentialLR(optim, 0.9)},
    "learning rate by epoch": {"schedule": lambda optim: torch.optim.lr_scheduler.StepLR(optim, 8, 0.5), "clip": 1.0},
    "tail": {"tail": True, "clip": 0.1, "evaluate": True},
    "gradients zeroed in place": {"set_to_none": False, "clip": 0.1},
    "closure": {"closure": True, "clip": 0.1, "optimizer": adamw},
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_identical_to_the_bit(case, graphs):
    plain = train(**CASES[case])
    graphs.begin()
    replayed = train(**CASES[case])
    assert same(replayed, plain)
    assert graphs.site.outcome.status == "applied", graphs.site.outcome
    assert graphs.recorder.replays["forward"] >= 15
    by_step = case == "learning rate by step"
    assert ("stays eager" in graphs.site.outcome.why) == by_step, graphs.site.outcome
    assert ("clipping" in graphs.site.outcome.why) == ("clip" in CASES[case])
    assert (graphs.recorder.replays["other"] > 10) != by_step


@pytest.mark.parametrize(
    "case", [{}, {"set_to_none": False}, {"clip": 0.05}, {"model": lambda: Net(0.5), "tail": True}]
)
def test_weights_updated_by_hand_are_the_same_to_the_bit(case, graphs):
    plain = train(optimizer=UpdatedByHand, **case)
    graphs.begin()
    graphs.site.seams.without_optimizer = True
    replayed = train(optimizer=UpdatedByHand, **case)
    assert same(replayed, plain)
    assert graphs.site.outcome.status == "applied", graphs.site.outcome
    assert graphs.recorder.replays["forward"] >= 15


def test_a_learning_rate_that_decays_with_the_number_of_the_step_stays_eager(graphs):
    decaying = {"optimizer": lambda parameters: torch.optim.Adagrad(parameters, lr_decay=0.1)}
    plain = train(**decaying)
    graphs.begin()
    replayed = train(**decaying)
    assert same(replayed, plain)
    assert "Adagrad stays eager (the learning rate of Adagrad depends on the number" in graphs.site.outcome.why


class Masked(Net):
    """It makes a mask for the size of its batch, and keeps it until a batch has another size."""

    def __init__(self):
        super().__init__()
        self.mask = None

    def forward(self, inputs):
        if self.mask is None or self.mask.size(0) != len(inputs):
            self.mask = torch.linspace(0.5, 1.5, len(inputs)).unsqueeze(1)
        return super().forward(inputs * self.mask)


@pytest.mark.parametrize("tail", [False, True])
def test_a_mask_that_is_made_anew_when_the_size_changes_stays_right(tail, graphs):
    plain = train(model=Masked, tail=tail, steps=60)
    graphs.begin()
    replayed = train(model=Masked, tail=tail, steps=60)
    assert same(replayed, plain)
    assert graphs.site.outcome.status == "applied", graphs.site.outcome
    assert graphs.recorder.replays["forward"] >= (4 if tail else 50)


SETTINGS = SimpleNamespace(seen=0, traced=False)


class Tracing(Net):
    """It sets an attribute of something that is no module, but only when asked to."""

    def forward(self, inputs):
        if SETTINGS.traced:
            SETTINGS.seen += 1
        return super().forward(inputs)


def test_a_model_that_sets_something_when_asked_to_is_replayed_until_then(graphs):
    def around(number, net, _):
        SETTINGS.traced = number in (12, 13)

    SETTINGS.seen = 0
    plain = train(model=Tracing, around=around)
    graphs.begin()
    replayed = train(model=Tracing, around=around)
    assert same(replayed, plain)
    assert SETTINGS.seen == 4
    assert graphs.recorder.replays["forward"] >= 15
    assert sys.gettrace() is None


class Gathering(Net):
    """It fills an object that it makes in each call."""

    def forward(self, inputs):
        made = SimpleNamespace()
        made.hidden = self.first(inputs)
        return self.last(self.norm(made.hidden).relu())


def test_a_model_that_fills_an_object_of_its_own_is_replayed(graphs):
    plain = train(model=Gathering)
    graphs.begin()
    replayed = train(model=Gathering)
    assert same(replayed, plain)
    assert graphs.recorder.replays["forward"] >= 15


class Talkative(Net):
    """It prints and logs, but only when asked to."""

    verbose = False

    def forward(self, inputs):
        if self.verbose:
            print("it was called")
            logging.getLogger("of a model").warning("it was called")
        return super().forward(inputs)


def test_a_model_that_prints_when_asked_to_is_replayed_until_then(graphs, capsys):
    def around(number, net, _):
        net.verbose = number in (12, 13)

    plain = train(model=Talkative, around=around)
    said = capsys.readouterr().out
    graphs.begin()
    replayed = train(model=Talkative, around=around)
    assert same(replayed, plain)
    assert capsys.readouterr().out == said == 2 * "it was called\n"
    assert graphs.recorder.replays["forward"] >= 15


class Attending(nn.Module):
    """A transformer layer asks at each call whether its mask is causal, and waits for the answer."""

    def __init__(self, made_anew=False):
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(9))
        self.made_anew = made_anew

    def forward(self, inputs):
        mask = self.mask[: len(inputs), : len(inputs)]
        return self.layers(inputs.unsqueeze(0), mask=mask.clone() if self.made_anew else mask)


def test_a_mask_is_asked_once_whether_it_is_causal(graphs, monkeypatch):
    original, asked = nn.modules.transformer._detect_is_causal_mask, []

    def detect(mask, is_causal=None, size=None):
        asked.append(is_causal)
        return original(mask, is_causal, size)

    monkeypatch.setattr(nn.modules.transformer, "_detect_is_causal_mask", detect)
    plain, each = train(model=Attending), len(asked)
    asked.clear()
    graphs.begin()
    replayed = train(model=Attending)
    assert same(replayed, plain)
    assert graphs.site.outcome.status == "applied", graphs.site.outcome
    assert graphs.recorder.replays["forward"] >= 15
    assert len(asked) < each / 2
    assert nn.modules.transformer._detect_is_causal_mask is detect


def test_a_mask_that_the_program_writes_into_is_asked_again(graphs):
    def around(number, net, _):
        if number == 12:
            net.mask.zero_()

    plain = train(model=Attending, around=around, steps=60)
    graphs.begin()
    replayed = train(model=Attending, around=around, steps=60)
    assert same(replayed, plain)
    assert graphs.recorder.replays["forward"] >= 20


def test_refuses_a_mask_that_is_made_anew_in_each_call(graphs):
    plain = train(model=lambda: Attending(made_anew=True))
    graphs.begin()
    replayed = train(model=lambda: Attending(made_anew=True))
    assert same(replayed, plain)
    assert graphs.site.outcome.status == "refused"
    assert "a mask that it makes anew" in graphs.site.outcome.why


@pytest.mark.parametrize("devices", [None, []])
def test_a_model_in_a_data_parallel_over_one_device_is_captured(devices, graphs):
    plain = train(model=lambda: nn.DataParallel(Net(), devices))
    graphs.begin()
    replayed = train(model=lambda: nn.DataParallel(Net(), devices))
    assert same(replayed, plain)
    assert "forward and backward of Net" in graphs.site.outcome.why
    assert graphs.recorder.replays["forward"] >= 15


def test_what_differs_from_itself_as_much_may_differ():
    reference = torch.zeros(100)
    again = [torch.randn(100, generator=torch.Generator().manual_seed(n)) * 1e-3 for n in range(2)]
    assert is_as_uncertain(torch.full((100,), 4e-3), reference, again)
    assert not is_as_uncertain(torch.full((100,), 4e-2), reference, again)
    assert not is_as_uncertain(torch.full((100,), 1e-9), reference, [reference, reference])
    assert not is_as_uncertain(None, reference, again)
    assert not is_as_uncertain(torch.zeros(100), reference, [])


def test_a_model_that_is_never_the_same_twice_may_be_replayed_as_long_as_it_is_no_further_off(graphs):
    """Its gradient is noise around nothing, as that of a bias before a normalisation when kernels add in any order."""
    noise = torch.Generator().manual_seed(0)

    class Uncertain(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inputs, weight):
            return inputs + 0 * weight

        @staticmethod
        def backward(ctx, upstream):
            return upstream, 1e-4 * torch.randn(upstream.shape[-1], generator=noise)

    class Noisy(Net):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(2))

        def forward(self, inputs):
            return Uncertain.apply(super().forward(inputs), self.shift)

    graphs.begin()
    train(model=Noisy)
    assert graphs.site.outcome.status == "applied", graphs.site.outcome
    assert graphs.recorder.replays["forward"] >= 15


def test_supports_optimizers_created_and_hooked_before_it_begins(graphs):
    """The optimizer's class already has hooks around the step; they are still called once per step."""
    seen = []
    sgd([nn.Parameter(torch.zeros(1))])
    plain = train(clip=0.1)
    handle = register_optimizer_step_post_hook(lambda *_: seen.append(1))
    graphs.begin()
    try:
        assert same(train(clip=0.1), plain)
    finally:
        handle.remove()
    assert len(seen) == 24
    assert "SGD's step" in graphs.site.outcome.why


def test_closing_restores_everything(graphs):
    sgd([nn.Parameter(torch.zeros(1))]), adamw([nn.Parameter(torch.zeros(1))])
    owners = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.nn.utils, torch.nn.utils.clip_grad)
    before = [dict(vars(owner)) for owner in owners]
    graphs.begin()
    train(clip=0.1)
    graphs.site.close()
    assert [dict(vars(owner)) for owner in owners] == before


def test_the_model_is_saved_unchanged(graphs):
    graphs.begin()
    copies = []
    train(around=lambda number, net, optim: copies.append(net))
    net = copies[-1]
    assert "forward" not in vars(net)
    file = io.BytesIO()
    torch.save(net, file)
    graphs.site.close()
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    net.eval(), loaded.eval()
    assert torch.equal(loaded(torch.ones(1, 6)), net(torch.ones(1, 6)))


def change(name):
    """Does something a user may do in the middle of the training."""

    def around(number, net, optim):
        if number != 12:
            return
        if name == "freeze":
            net.first.weight.requires_grad_(False)
        elif name == "replace":
            torch.manual_seed(1)
            net.first = nn.Linear(6, 8)
        elif name == "load":
            optim.load_state_dict(optim.state_dict())
        elif name == "part in evaluation mode":
            net.norm.eval()
        elif name == "momentum":
            optim.param_groups[0]["momentum"] = 0.5
        elif name == "new storage":
            net.first.weight.data = net.first.weight.data.clone()

    return around


@pytest.mark.parametrize("name", ["freeze", "replace", "load", "part in evaluation mode", "momentum", "new storage"])
def test_notices_a_change_mid_training(name, graphs):
    plain = train(around=change(name), clip=0.1)
    graphs.begin()
    assert same(train(around=change(name), clip=0.1), plain)
    assert graphs.recorder.replays["forward"] >= 5


def test_kept_outputs_are_not_overwritten_and_two_forwards_do_not_mix(graphs):
    def loop():
        torch.manual_seed(0)
        net, held = Net(), []
        optim = sgd(net.parameters())
        for number in range(16):
            optim.zero_grad()
            outputs = net(torch.randn(5, 6))
            if number > 8:
                outputs = outputs + net(torch.randn(5, 6))  # the first call's backward is still to come
            held.append(outputs.detach())
            outputs.square().mean().backward()
            optim.step()
        return held

    plain = loop()
    graphs.begin()
    assert same(loop(), plain)
    assert graphs.recorder.replays["forward"] >= 12


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("backwards", [lambda step: 2, lambda step: 1 if step < 8 else 3, lambda step: 1 + step % 3])
def test_gradients_accumulate_over_several_batches(backwards, set_to_none, graphs):
    def loop():
        torch.manual_seed(0)
        net = Net()
        optim = adamw(net.parameters())
        gradients = []
        for number in range(16):
            optim.zero_grad(set_to_none)
            for _ in range(backwards(number)):
                net(torch.randn(5, 6)).square().mean().backward()
                gradients.append(net.last.weight.grad.clone())
            held = net.first.weight.grad
            optim.step()
            gradients.append(held.clone())
        return [*gradients, *net.state_dict().values()]

    plain = loop()
    graphs.begin()
    assert same(loop(), plain)
    assert graphs.recorder.replays["backward"] > 16
    assert graphs.site.outcome.status == "applied", graphs.site.outcome


def test_a_gradient_held_across_batches_keeps_accumulating(graphs):
    def loop():
        torch.manual_seed(0)
        net = Net()
        optim = sgd(net.parameters())
        seen = []
        for _ in range(12):
            optim.zero_grad()
            net(torch.randn(5, 6)).square().mean().backward()
            held = net.first.weight.grad
            net(torch.randn(5, 6)).square().mean().backward()
            seen += [held.clone(), torch.tensor(held is net.first.weight.grad)]
            optim.step()
        return seen

    plain = loop()
    graphs.begin()
    assert same(loop(), plain)
    assert graphs.recorder.replays["backward"] > 12


class TwoHeads(Net):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(8, 1)

    def forward(self, inputs):
        features = self.first(inputs)
        return {"main": self.last(features), "other": self.other(features), "size": 8, "argmax": features.argmax(1)}


def test_a_head_without_a_loss_gets_no_gradient(graphs):
    """With weight decay a gradient of zero would shrink the weights; a missing gradient does not."""

    def loop():
        torch.manual_seed(0)
        net, seen = TwoHeads(), []
        optim = torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.1)
        for _ in range(12):
            optim.zero_grad()
            outputs = net(torch.randn(5, 6))
            assert outputs["size"] == 8
            outputs["main"].square().mean().backward()
            seen.append(outputs["argmax"])
            optim.step()
        return [*seen, *net.state_dict().values()]

    plain = loop()
    graphs.begin()
    assert same(loop(), plain)
    assert graphs.recorder.replays["forward"] >= 6


def test_parameters_that_share_a_gradient_are_clipped_separately(graphs):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))

        def forward(self, inputs):
            return (self.one + self.two) * inputs

    plain = train(model=Sum, clip=0.01)
    graphs.begin()
    assert same(train(model=Sum, clip=0.01), plain)
    assert graphs.recorder.replays["forward"] >= 15


NORMS = {
    "a view of it": lambda norm: norm.detach(),
    "a number": lambda norm: torch.tensor(norm.item()),
    "it, written into": lambda norm: norm.add_(1.0),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_that_the_program_keeps_is_not_overwritten(name, graphs):
    plain = train(clip=0.1, kept_norm=NORMS[name])
    graphs.begin()
    assert same(train(clip=0.1, kept_norm=NORMS[name]), plain)
    assert "clipping too" in graphs.site.outcome.why


def test_a_norm_and_its_views_share_memory(graphs):
    norms = []
    graphs.begin()
    train(clip=0.1, kept_norm=lambda norm: norms.append((norm, norm.view(1))) or norm)
    assert all(norm.data_ptr() == view.data_ptr() for norm, view in norms)
    assert len({norm.data_ptr() for norm, _ in norms}) == len(norms)


def test_a_norm_that_nobody_keeps_is_not_copied(graphs):
    held = []
    graphs.begin()
    train(clip=0.1, kept_norm=lambda norm: torch.tensor(held.append(norm.data_ptr()) or 0.0))
    assert len(set(held[-8:])) == 1


def test_an_optimizer_that_counts_on_the_host_stays_eager(graphs):
    plain = train(optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01), clip=0.1)
    graphs.begin()
    assert same(train(optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01), clip=0.1), plain)
    assert "clipping too; AdamW stays eager (AdamW is not fused" in graphs.site.outcome.why


def test_an_error_in_the_users_closure_is_raised_once(graphs):
    graphs.begin()
    calls = []

    def around(number, net, optim):
        if number == 10:

            def closure():
                calls.append(1)
                raise KeyError("mine")

            optim.step(closure)

    with pytest.raises(KeyError, match="mine"):
        train(around=around)
    assert calls == [1]


def test_a_forked_child_does_not_release_recordings(graphs, monkeypatch):
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    graphs.begin()
    graphs.site.seams.when_silent[-1]()
    assert not frozen  # nothing was recorded so far
    graphs._is_forked = False
    train()
    recorded = graphs.graphed
    assert recorded is not None
    graphs.site.seams.when_silent[-1]()
    graphs.drop()
    assert graphs.graphed is recorded
    assert frozen == [True]
    graphs._is_forked = False


def test_the_cuda_recorder_uses_what_torch_offers_and_recovers_from_failures():
    used = [name for name in dir(StubCuda()) if not name.startswith("_") and name not in ("notes", "mode", "pools")]
    assert all(hasattr(torch.cuda, name) for name in [*used, "get_rng_state", "set_rng_state"])
    parameters = inspect.signature(torch.cuda.graph.__init__).parameters
    assert {"pool", "stream", "capture_error_mode"} <= set(parameters)

    cuda = StubCuda()
    warns = {name: getattr(torch, name) for name in ("is_warn_always_enabled", "set_warn_always")}
    recorder = CudaRecorder(SimpleNamespace(cuda=cuda, **warns))
    assert recorder.here(lambda: cuda.mode) == "error"
    assert recorder.aside(lambda: cuda.mode) == 0
    assert cuda.notes == ["wait", "stream", "back", "wait"]

    cuda.notes.clear()
    first, second = recorder.record_both(lambda: 1, lambda outcome: outcome + 1)
    assert (first.outcome, second.outcome) == (1, 2)
    first.replay()
    of_forward, of_backward = (["stream", f"capture pool {n} thread_local", "end", "back"] for n in (1, 2))
    assert cuda.notes == [*of_forward, *of_backward, "replay"], "gradients outlive the next forward"

    cuda.notes.clear()
    recorder.record_both(lambda: 1, lambda outcome: outcome + 1, "shared")
    assert [note for note in cuda.notes if "capture" in note] == ["capture shared thread_local"] * 2

    cuda.notes.clear()
    with pytest.raises(ZeroDivisionError):
        recorder.record(lambda: 1 / 0)
    assert cuda.notes[-2:] == ["back", "random before"]


def test_rerecords_steady_work_less_and_less_often():
    recorder = EmulatedRecorder()
    steady = Steady(recorder)
    done = []

    def due(key):
        if steady.ready(key):
            steady.replay(key, lambda: done.append(key))

    for key in [1, 1, 1, 2, 1, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5, 6, 7]:
        due(key)
    assert done == [1, 1, 1, 2, 2, 3]
    assert recorder.recorded == 3
    steady.forget()


def test_compares_results_within_tolerance():
    tensor = torch.tensor([1.0, 2.0])
    assert near(torch, tensor, tensor.clone())
    assert near(torch, tensor, tensor * (1 + 1e-5))
    assert not near(torch, tensor, tensor * 1.1)
    assert not near(torch, tensor, None)
    assert not near(torch, torch.tensor([1, 2]), torch.tensor([1, 3]))
    assert near(torch, torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]))


def test_estimates_its_gain_from_device_idle_time():
    assert detect(observation()) is None  # on CPU
    seen = launch_bound()
    assert detect(seen).most == pytest.approx(min(1 - seen.device.busy_share, issuing(seen)))


def issuing(seen):
    return sum(seen.shares[phase] for phase in ("forward", "backward", "optimizer"))


def test_a_part_that_is_no_longer_frozen_is_rerecorded_soon(graphs):
    def around(number, net, optim):
        net.first.requires_grad_(number >= 12)
        replays.append(graphs.recorder.replays["forward"])

    replays = []
    plain = train(around=around, steps=24)
    graphs.begin()
    replays.clear()
    assert same(train(around=around, steps=24), plain)
    assert replays[-1] - replays[12] >= 6, "three calls to be sure, two to record"


def test_periodic_comparison_finds_a_replay_that_has_become_wrong(graphs, constants):
    constants(proof, EVERY=4)

    def around(number, *_):
        if number == 30:
            graphed = graphs.graphed
            right = graphed._forward.replay
            graphed._forward = graphed._forward._replace(replay=lambda: (right(), graphed._outputs[0].mul_(0.5)))

    plain = train(steps=60)
    graphs.begin()
    replayed = train(steps=60, around=around)
    assert same(replayed[:30], plain[:30])
    assert graphs.site.outcome.status == "withdrawn"
    assert "a replay gives different results from the model itself: an output differs by" in graphs.site.outcome.why


def test_periodic_comparison_changes_nothing(graphs, constants, spied):
    constants(proof, EVERY=1)  # each time
    plain = train(model=lambda: Net(0.5), optimizer=adamw, clip=0.1)
    calls = spied(GraphedRoot, "_prove")
    graphs.begin()
    assert same(train(model=lambda: Net(0.5), optimizer=adamw, clip=0.1), plain)
    assert graphs.site.outcome.status == "applied", graphs.site.outcome
    assert len(calls) > 12


def test_the_step_of_a_class_first_used_after_it_was_replaced_is_captured(graphs, monkeypatch):
    """Torch then puts the hooks of the step around ours."""
    before = torch.optim.Adagrad.step
    monkeypatch.setattr(torch.optim.Adagrad, "step", before.__wrapped__ if getattr(before, "hooked", False) else before)
    graphs.begin()
    train(optimizer=adagrad)
    assert "Adagrad's step" in graphs.site.outcome.why
