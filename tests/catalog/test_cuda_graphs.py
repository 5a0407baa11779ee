"""CUDA graphs without CUDA: an emulated recorder replays by doing the work again into the same tensors.

So all that is decided, checked, copied and put back is tested here to the bit; tests/cuda has what only a GPU can show.
"""

from __future__ import annotations

import io
import random
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

from hotlap.catalog import entries
from hotlap.catalog.cuda_graphs import rules
from hotlap.catalog.cuda_graphs.apply import Graphs
from hotlap.catalog.cuda_graphs.detect import detect
from hotlap.catalog.cuda_graphs.graphed import near
from hotlap.catalog.cuda_graphs.recorder import Recording
from hotlap.catalog.cuda_graphs.steady import Steady
from hotlap.catalog.moments import Moments
from hotlap.catalog.site import Site
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from tests.observations import launch_bound, observation


class EmulatedRecorder:
    """A replay overwrites what was recorded, as a graph would, and recording leaves no effect behind."""

    device_type = "cpu"

    def __init__(self):
        self.replays = {"forward": 0, "backward": 0, "other": 0}
        self.recorded = self.forgotten = 0

    def aside(self, work, may_wait):
        return work()

    def record_both(self, forward, backward):
        self.recorded += 1
        latest = forward()
        outputs = [copy(one) for one in latest]
        gradients = backward(latest)

        def replay_forward():
            nonlocal latest
            self.replays["forward"] += 1
            with torch.enable_grad():
                latest = forward()
            overwrite(outputs, latest)

        def replay_backward():
            self.replays["backward"] += 1
            overwrite(gradients, backward(latest))

        return Recording(outputs, replay_forward, self.forget), Recording(gradients, replay_backward, self.forget)

    def record(self, work):
        """Not done while recording: what it gives is a tensor of its own, written by each replay."""
        self.recorded += 1
        held = torch.zeros(())

        def replay():
            self.replays["other"] += 1
            found = work()
            if found is not None:
                held.copy_(found)

        return Recording(held, replay, self.forget)

    def forget(self):
        self.forgotten += 1

    def random_state(self):
        return torch.get_rng_state()

    def set_random_state(self, state):
        torch.set_rng_state(state)


def copy(one):
    return one.detach().clone().requires_grad_(one.requires_grad) if isinstance(one, torch.Tensor) else one


def overwrite(held, found):
    with torch.no_grad():
        for one, other in zip(held, found, strict=True):
            if isinstance(one, torch.Tensor):
                one.copy_(other)


@pytest.fixture
def graphs():
    """Graphs at work in this process, as the entry would set them up on a GPU."""
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    site = Site("cuda-graphs", entries()["cuda-graphs"], None, torch, seams, Moments(seams))
    graphs = Graphs(site, EmulatedRecorder())
    yield graphs
    site.close()
    seams.close()
    assert graphs.recorder.forgotten >= graphs.recorder.recorded


class Net(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(8, 2)

    def forward(self, inputs):
        return self.last(self.dropout(self.norm(self.first(inputs).relu())))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, fused=True)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01, fused=True)


def train(
    model=Net, optimizer=sgd, steps=24, clip=None, schedule=None, set_to_none=True, closure=False, evaluate=False,
    tail=False, around=None,
):  # fmt: skip
    """All that a user sees: losses, norms, evaluations, the final state, the random stream."""
    torch.manual_seed(0)
    net = model()
    optim = optimizer(net.parameters())
    scheduler = schedule(optim) if schedule else None
    seen = []
    for number in range(steps):
        inputs = torch.randn(3 if tail and number % 6 == 5 else 5, 6)

        def forward_backward(inputs=inputs):
            optim.zero_grad(set_to_none=set_to_none)
            loss = net(inputs).square().mean()
            loss.backward()
            if clip:
                seen.append(torch.nn.utils.clip_grad_norm_(net.parameters(), clip))
            return loss

        if around:
            around(number, net, optim)
        if closure:
            seen.append(optim.step(forward_backward).detach())
        else:
            seen.append(forward_backward().detach())
            optim.step()
        if scheduler:
            scheduler.step()
        if evaluate and number % 5 == 4:
            net.eval()
            with torch.no_grad():
                seen.append(net(inputs))
            net.train()
    return [*seen, *net.state_dict().values(), torch.rand(3)]


def same(some, others):
    return len(some) == len(others) and all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


CASES = {
    "plain": {},
    "dropout": {"model": lambda: Net(0.5)},
    "clipping": {"clip": 0.05},
    "AdamW": {"optimizer": adamw, "clip": 0.1},
    "Adam": {"optimizer": adam},
    "learning rate by step": {"schedule": lambda optim: torch.optim.lr_scheduler.ExponentialLR(optim, 0.9)},
    "learning rate by epoch": {"schedule": lambda optim: torch.optim.lr_scheduler.StepLR(optim, 8, 0.5), "clip": 1.0},
    "tail": {"tail": True, "clip": 0.1, "evaluate": True},
    "gradients zeroed in place": {"set_to_none": False, "clip": 0.1},
    "closure": {"closure": True, "clip": 0.1, "optimizer": adamw},
}


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_the_same_to_the_bit(case, graphs):
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


def test_optimizers_made_and_hooked_before_it_begins(graphs):
    """Its class has hooks around the step by then; they are called once a step all the same."""
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


def test_what_it_touched_is_as_before(graphs):
    sgd([nn.Parameter(torch.zeros(1))]), adamw([nn.Parameter(torch.zeros(1))])
    owners = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.nn.utils, torch.nn.utils.clip_grad)
    before = [dict(vars(owner)) for owner in owners]
    graphs.begin()
    train(clip=0.1)
    graphs.site.close()
    assert [dict(vars(owner)) for owner in owners] == before


def test_the_model_is_saved_as_it_is(graphs):
    graphs.begin()
    kept = []
    train(around=lambda number, net, optim: kept.append(net))
    net = kept[-1]
    assert "forward" not in vars(net)
    file = io.BytesIO()
    torch.save(net, file)
    graphs.site.close()
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    net.eval(), loaded.eval()
    assert torch.equal(loaded(torch.ones(1, 6)), net(torch.ones(1, 6)))


def change(name):
    """Something the user does in the middle of the training."""

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
def test_a_change_in_the_middle_is_noticed(name, graphs):
    plain = train(around=change(name), clip=0.1)
    graphs.begin()
    assert same(train(around=change(name), clip=0.1), plain)
    assert graphs.recorder.replays["forward"] >= 5


def test_outputs_that_are_kept_are_not_overwritten_and_two_forwards_do_not_mix(graphs):
    def loop():
        torch.manual_seed(0)
        net, kept = Net(), []
        optim = sgd(net.parameters())
        for number in range(16):
            optim.zero_grad()
            outputs = net(torch.randn(5, 6))
            if number > 8:
                outputs = outputs + net(torch.randn(5, 6))  # the first one's backward is still to come
            kept.append(outputs.detach())
            outputs.square().mean().backward()
            optim.step()
        return kept

    plain = loop()
    graphs.begin()
    assert same(loop(), plain)
    assert graphs.recorder.replays["forward"] >= 12


def test_accumulation_that_begins_later_adds_up(graphs):
    def loop():
        torch.manual_seed(0)
        net = Net()
        optim = sgd(net.parameters())
        for number in range(16):
            optim.zero_grad()
            for _ in range(1 if number < 8 else 3):
                net(torch.randn(5, 6)).square().mean().backward()
            optim.step()
        return list(net.state_dict().values())

    plain = loop()
    graphs.begin()
    assert same(loop(), plain)
    assert graphs.recorder.replays["backward"] > 16


class TwoHeads(Net):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(8, 1)

    def forward(self, inputs):
        features = self.first(inputs)
        return {"main": self.last(features), "other": self.other(features), "size": 8, "argmax": features.argmax(1)}


def test_a_head_without_a_loss_gets_no_gradient(graphs):
    """With weight decay a gradient of zero would shrink it, no gradient does not."""

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


def test_parameters_that_share_a_gradient_are_clipped_apart(graphs):
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


class Changing(Net):
    def forward(self, inputs):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(inputs)


class Drawing(Net):
    def forward(self, inputs):
        return super().forward(inputs) * (1 + random.random())


class Writing(Net):
    def forward(self, inputs):
        return super().forward(inputs.mul_(2))


class Keeping(Net):
    def forward(self, inputs):
        self.features = self.first(inputs)
        return self.last(self.features)


class Sparse(Net):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=True)

    def forward(self, inputs):
        return super().forward(inputs) + self.table(torch.zeros(5, dtype=torch.long))


class Hooked(Net):
    def __init__(self):
        super().__init__()
        self.first.register_forward_hook(lambda *_: None)


class GradientHook(Net):
    def __init__(self):
        super().__init__()
        self.first.weight.register_hook(lambda gradient: gradient)


class RecurrentDropout(Net):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, num_layers=2, dropout=0.5)


REFUSED = {
    RecurrentDropout: "dropout between recurrent layers",
    Changing: "changes the attribute calls",
    Keeping: "changes the attribute features",
    Drawing: "draws random numbers",
    Writing: "writes into its inputs",
    Sparse: "sparse",
    Hooked: "has hooks",
    GradientHook: "gradient hooks",
}


@pytest.mark.parametrize("model", REFUSED)
def test_a_model_that_cannot_be_replayed_is_refused_and_trains_on(model, graphs):
    random.seed(0)
    plain = train(model=model, steps=8), random.random()
    random.seed(0)
    graphs.begin()
    replayed = train(model=model, steps=8), random.random()
    assert same(replayed[0], plain[0])
    assert replayed[1] == plain[1]
    assert graphs.site.outcome.status == "refused"
    assert REFUSED[model] in graphs.site.outcome.why
    assert graphs.recorder.replays["forward"] == 0


def habit(name):
    def loop():
        net, other = Net(), Net()
        optim, second = sgd(net.parameters()), sgd(other.parameters())
        for _ in range(6):
            optim.zero_grad()
            for _ in range(2 if name == "accumulation" else 1):
                loss = net(torch.randn(5, 6)).square().mean()
                if name == "penalty":
                    torch.autograd.grad(loss, net.first.weight, create_graph=True)
                loss.backward(retain_graph=name == "retained")
            optim.step()
            if name == "second optimizer":
                other(torch.randn(5, 6)).mean().backward()
                second.step()

    return loop


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("accumulation", "2 backwards a step"),
        ("penalty", "torch.autograd.grad is used"),
        ("retained", "keeps its graph"),
        ("second optimizer", "several optimizers"),
    ],
)
def test_a_loop_of_another_form_is_refused(name, why, graphs):
    graphs.begin()
    habit(name)()
    assert graphs.site.outcome.status == "refused"
    assert why in graphs.site.outcome.why


def test_an_optimizer_that_counts_on_the_host_stays_eager(graphs):
    plain = train(optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01), clip=0.1)
    graphs.begin()
    assert same(train(optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01), clip=0.1), plain)
    assert "clipping too; AdamW stays eager (AdamW is not fused" in graphs.site.outcome.why


def test_an_error_of_the_users_closure_passes_through_once(graphs):
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


def loader(**options):
    values = {"num_workers": 2, "persistent_workers": False, "multiprocessing_context": None, "_iterator": None}
    return SimpleNamespace(**values | options)


def test_workers_forked_at_each_epoch_are_refused(monkeypatch):
    monkeypatch.setattr(rules, "_start_method", lambda loader: "fork")
    assert "forks 2 workers at each epoch" in rules.why_not_loaders([loader(num_workers=0), loader()])
    assert rules.why_not_loaders([loader(persistent_workers=True), loader(num_workers=0)]) is None
    assert rules.forks(loader(persistent_workers=True))
    assert not rules.forks(loader(persistent_workers=True, _iterator=object()))
    monkeypatch.setattr(rules, "_start_method", lambda loader: "spawn")
    assert rules.why_not_loaders([loader()]) is None
    assert not rules.forks(loader())


def test_recordings_are_let_go_before_workers_are_forked_and_made_again(graphs, monkeypatch):
    monkeypatch.setattr(rules, "_start_method", lambda loader: "fork")
    data = DataLoader(TensorDataset(torch.zeros(2)), num_workers=1, persistent_workers=True)
    held = []

    def around(number, net, optim):
        if number == 12:
            assert graphs.active
            graphs._iterated(data)
            held.append(graphs.active)

    plain = train()
    graphs.begin()
    assert same(train(around=around), plain)
    assert held == [False]
    assert graphs.recorder.recorded == 4  # twice: forward and backward, and the optimizer's step


def test_steady_work_is_recorded_anew_ever_more_seldom():
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


def test_results_near_each_other():
    one = torch.tensor([1.0, 2.0])
    assert near(torch, one, one.clone())
    assert near(torch, one, one * (1 + 1e-5))
    assert not near(torch, one, one * 1.1)
    assert not near(torch, one, None)
    assert not near(torch, torch.tensor([1, 2]), torch.tensor([1, 3]))
    assert near(torch, torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]))


def test_it_expects_what_the_device_idles():
    assert detect(observation()) is None  # on CPU
    seen = launch_bound()
    assert detect(seen).most == pytest.approx(min(1 - seen.device.busy_share, issuing(seen)))


def issuing(seen):
    return sum(seen.shares[phase] for phase in ("forward", "backward", "optimizer"))
