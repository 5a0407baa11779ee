"""CUDA graphs emulated on the CPU, and a training to compare with and without them."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from torch import nn

from hotlap.catalog import entries
from hotlap.catalog.cuda_graphs.apply import Graphs
from hotlap.catalog.cuda_graphs.recorder import Recording
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.runtime.root_discovery import RootDiscovery
from hotlap.runtime.site import Site


class EmulatedRecorder:
    """A replay overwrites the recorded tensors, as a graph would, and recording has no side effects."""

    device_type = "cpu"

    def __init__(self):
        self.replays = {"forward": 0, "backward": 0, "other": 0}
        self.recorded = self.forgotten = 0
        self.off = 0.0  # what is added to the gradients of a replay that goes wrong

    def here(self, work):
        return work()

    aside = here
    waiting = nullcontext

    def new_pool(self):
        return object()

    def record_both(self, forward, backward, pool=None):
        self.recorded += 1
        latest = forward()
        outputs = [copy(output) for output in latest]
        gradients = backward(latest)

        def replay_forward():
            nonlocal latest
            self.replays["forward"] += 1
            with torch.enable_grad():
                latest = forward()
            overwrite(outputs, latest)

        def replay_backward():
            self.replays["backward"] += 1
            overwrite(gradients, [None if found is None else found + self.off for found in backward(latest)])

        return Recording(outputs, replay_forward, self.forget), Recording(gradients, replay_backward, self.forget)

    def record(self, work):
        """The work does not run while recording; the result is a separate tensor that each replay writes."""
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


def copy(value):
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def overwrite(held, found):
    with torch.no_grad():
        for target, source in zip(held, found, strict=True):
            if isinstance(target, torch.Tensor):
                target.copy_(source)


def at_work():
    """Sets up graphs in this process as the entry would on a GPU."""
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    site = Site("cuda-graphs", entries()["cuda-graphs"].code, None, torch, seams, RootDiscovery(seams))
    graphs = Graphs(site, EmulatedRecorder())
    yield graphs
    site.close()
    seams.close()
    assert graphs.recorder.forgotten >= graphs.recorder.recorded


class StubCuda:
    """This stub has the names of torch.cuda that the recorder uses, and notes how it uses them."""

    def __init__(self):
        self.notes, self.mode, self.pools = [], 0, 0
        self.CUDAGraph = lambda: SimpleNamespace(replay=lambda: self.notes.append("replay"), reset=lambda: None)

    def Stream(self):
        return SimpleNamespace(wait_stream=lambda other: self.notes.append("wait"))

    current_stream = Stream

    @contextmanager
    def stream(self, stream):
        self.notes.append("stream")
        try:
            yield
        finally:
            self.notes.append("back")

    @contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        self.notes.append(f"capture {pool} {capture_error_mode}")
        yield
        self.notes.append("end")

    @property
    def default_generators(self):
        put_back = lambda state: self.notes.append(f"random {state}")  # noqa: E731
        return [SimpleNamespace(clone_state=lambda: "before", graphsafe_set_state=put_back)]

    def current_device(self):
        return 0

    def graph_pool_handle(self):
        self.pools += 1
        return f"pool {self.pools}"

    def get_sync_debug_mode(self):
        return self.mode

    def set_sync_debug_mode(self, mode):
        self.mode = mode


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


def rmsprop(parameters):
    return torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5, centered=True)


def adadelta(parameters):
    return torch.optim.Adadelta(parameters)


def adagrad(parameters):
    return torch.optim.Adagrad(parameters)


class UpdatedByHand:
    """This is what a program without an optimizer does with its gradients."""

    def __init__(self, parameters):
        self._parameters = list(parameters)

    def zero_grad(self, set_to_none=True):
        for parameter in self._parameters:
            parameter.grad = None if set_to_none or parameter.grad is None else parameter.grad.zero_()

    def step(self):
        for parameter in self._parameters:
            parameter.data.add_(parameter.grad, alpha=-0.1)


def train(
    model=Net, optimizer=sgd, steps=24, clip=None, schedule=None, set_to_none=True, closure=False, evaluate=False,
    tail=False, around=None, kept_norm=lambda norm: norm,
):  # fmt: skip
    """Returns all that a user sees: losses, norms, evaluations, the final state and the random stream."""
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
                seen.append(kept_norm(torch.nn.utils.clip_grad_norm_(net.parameters(), clip)))
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
    kept = [value for state in getattr(optim, "state", {}).values() for value in state.values() if is_dense(value)]
    return [*seen, *net.state_dict().values(), *kept, torch.rand(3)]


def is_dense(value):
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def same(values, expected):
    return len(values) == len(expected) and all(
        torch.equal(value, wanted) for value, wanted in zip(values, expected, strict=True)
    )
