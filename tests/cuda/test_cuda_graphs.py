"""CUDA graphs on a GPU: the training is the same to the bit wherever eager training repeats itself to the bit.

Deterministic algorithms are enabled, so it does, and equality is exact. Adam and AdamW are fused in both runs.
"""

from __future__ import annotations

import functools
import gc
import io
import operator
import re
import sys
import weakref
from pathlib import Path

import pytest
import torch
from harness import bare
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hotlap
from hotlap.catalog.fused_optimizer import proof
from hotlap.kernels.recurrent import selection

pytestmark = pytest.mark.cuda
PROGRAM = Path(__file__).parent / "program.py"


@pytest.fixture(autouse=True)
def repeatable(monkeypatch):
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    hotlap.disable()
    torch.use_deterministic_algorithms(False)


def mlp():
    return nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


class Net(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8 * 2 * 2, 10)

    def forward(self, inputs):
        return self.head(self.dropout(self.features(inputs.view(-1, 3, 4, 4)).flatten(1)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, inputs):
        return self.head(self.lstm(inputs.view(-1, 8, 6))[0][:, -1])


class Masked(nn.Module):
    """Torch's transformer layers ask at each call whether their mask is causal, and wait for the answer."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(6, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(12))
        self.head = nn.Linear(16, 10)

    def forward(self, inputs):
        rows = self.enter(inputs.view(-1, 8, 6))
        return self.head(self.layers(rows, mask=self.mask[:8, :8])[:, -1])


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-3, fused=True)


def rmsprop(parameters):
    return torch.optim.RMSprop(parameters, lr=1e-3, momentum=0.5)


def adadelta(parameters):
    return torch.optim.Adadelta(parameters)


def adagrad(parameters):
    return torch.optim.Adagrad(parameters)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


def train(
    model=mlp, optimizer=sgd, clip=None, schedule=None, autocast=False, set_to_none=True, scaler=False, keep=None,
    view=None, kept_norm=lambda norm: norm,
):  # fmt: skip
    """Train four epochs of eight batches, the last one smaller, each followed by an evaluation, without any sync."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(16 * 7 + 5, 48), torch.randint(0, 10, (16 * 7 + 5,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    net = model().cuda()
    optim = optimizer(net.parameters())
    scheduler = schedule(optim) if schedule else None
    scaling = torch.amp.GradScaler("cuda", enabled=scaler)
    seen = []
    for _ in range(4):
        net.train()
        for inputs, targets in loader:
            optim.zero_grad(set_to_none=set_to_none)
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                outputs = net(inputs.cuda())
                loss = nn.functional.cross_entropy(outputs, targets.cuda())
            scaling.scale(loss).backward()
            if view:
                seen.append(view(net[0].weight.grad))
            if clip:
                scaling.unscale_(optim)
                seen.append(kept_norm(torch.nn.utils.clip_grad_norm_(net.parameters(), clip)))
            scaling.step(optim)
            scaling.update()
            seen += [loss.detach(), outputs.detach()]
            if scheduler and schedule is by_step:
                scheduler.step()
        if scheduler and schedule is by_epoch:
            scheduler.step()
        net.eval()
        with torch.no_grad():
            seen.append(net(torch.ones(3, 48, device="cuda")))
    if keep is not None:
        keep.append(net)
    return [tensor.cpu() for tensor in [*seen, *net.state_dict().values(), torch.rand(2, device="cuda"), torch.rand(2)]]


def by_step(optim):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optim, 32)


def by_epoch(optim):
    return torch.optim.lr_scheduler.StepLR(optim, 1, 0.5)


CASES = {
    "MLP, SGD": {},
    "MLP, Adam, clipping": {"optimizer": adam, "clip": 0.5},
    "MLP, AdamW, by epoch": {"optimizer": adamw, "clip": 0.5, "schedule": by_epoch},
    "MLP, AdamW, by step": {"optimizer": adamw, "schedule": by_step},
    "CNN with BatchNorm": {"model": Net, "optimizer": adamw, "clip": 0.5},
    "CNN with dropout": {"model": lambda: Net(0.5), "optimizer": sgd},
    "LSTM": {"model": Recurrent, "optimizer": adamw, "clip": 0.5},
    "autocast": {"model": Net, "autocast": True, "optimizer": adamw},
    "gradients zeroed in place": {"set_to_none": False, "clip": 0.5},
    "GradScaler": {"scaler": True, "clip": 0.5},
    "RMSprop": {"optimizer": rmsprop, "clip": 0.5},
    "Adadelta, by epoch": {"optimizer": adadelta, "schedule": by_epoch},
    "Adagrad": {"optimizer": adagrad},
    "causal mask": {"model": Masked, "optimizer": adamw},
    "DataParallel": {"model": lambda: nn.DataParallel(Net(0.5), [0]), "optimizer": sgd},
}


@pytest.mark.parametrize("case", CASES)
def test_the_training_is_the_same_to_the_bit(case):
    plain = train(**CASES[case])
    assert same(train(**CASES[case]), plain), "eager training does not repeat itself: this test shows nothing"
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        replayed = train(**CASES[case])
        (outcome,) = enabled.outcomes
    assert outcome.status == "applied", outcome
    assert same(replayed, plain)
    eager = case in ("MLP, AdamW, by step", "GradScaler")
    assert ("stays eager" in outcome.why) == eager, outcome


def test_weights_updated_by_hand_are_the_same_to_the_bit():
    def trained():
        torch.manual_seed(0)
        net, seen = Net(0.5).cuda(), []
        for _ in range(600):
            net.zero_grad()
            loss = nn.functional.cross_entropy(
                net(torch.randn(16, 48, device="cuda")), torch.randint(0, 10, (16,), device="cuda")
            )
            loss.backward()
            for parameter in net.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.05)
            seen.append(loss.detach())
        return [tensor.cpu() for tensor in [*seen, *net.state_dict().values()]]

    plain = trained()
    with hotlap.enable(risk="rounding") as enabled:
        decided = trained()
        outcomes = {outcome.name: outcome for outcome in enabled.outcomes}
    tried = outcomes["cuda-graphs"]
    assert tried.status != "refused", tried
    assert "never triggered" not in tried.why, tried
    assert same(decided[:90], plain[:90])  # before anything is tried
    assert torch.allclose(decided[-1], plain[-1], rtol=1e-2, atol=1e-4)


def test_choosing_kernels_in_the_same_run_does_not_prevent_graphs(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    selection.forget()
    with hotlap.enable(None, with_=["cuda-graphs", "recurrent-kernels"]) as enabled:
        train(model=Recurrent, optimizer=adamw)
        outcomes = enabled.outcomes
    selection.forget()
    assert list(tmp_path.rglob("*.cubin"))
    assert [outcome.status for outcome in outcomes] == ["applied", "applied"], outcomes


@pytest.mark.parametrize(
    "view", [lambda gradient: gradient, lambda gradient: gradient.detach(), lambda gradient: gradient[0]]
)
def test_gradients_that_are_kept_are_not_overwritten(view):
    plain = train(view=view)
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        replayed = train(view=view)
        (outcome,) = enabled.outcomes
    assert outcome.status == "applied", outcome
    assert same(replayed, plain)


@pytest.mark.parametrize(
    "norm_view", [lambda norm: norm, lambda norm: norm.detach(), lambda norm: norm.cpu(), lambda norm: torch.zeros(())]
)
def test_norms_that_are_kept_are_not_overwritten(norm_view):
    plain = train(optimizer=adam, clip=0.5, kept_norm=norm_view)
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        replayed = train(optimizer=adam, clip=0.5, kept_norm=norm_view)
        (outcome,) = enabled.outcomes
    assert "clipping too" in outcome.why, outcome
    assert same(replayed, plain)


def same(some, others):
    return len(some) == len(others) and all(
        torch.equal(tensor, expected) for tensor, expected in zip(some, others, strict=True)
    )


class Waiting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 10)

    def forward(self, inputs):
        outputs = self.linear(inputs)
        return outputs if outputs.sum().item() > -1e9 else -outputs


def test_a_forward_that_waits_for_the_device_is_refused_and_keeps_training():
    plain = train(model=Waiting)
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        assert same(train(model=Waiting), plain)
        (outcome,) = enabled.outcomes
    assert outcome.status == "refused"
    assert "waits for a value" in outcome.why


HIDDEN = {0: 1.0}
unseen = functools.partial(operator.getitem, HIDDEN, 0)  # calls into C, which cannot be analysed


class Scheduled(Net):
    def forward(self, inputs):
        return super().forward(inputs) * unseen()


@pytest.mark.parametrize(("later", "status"), [(1.0, "applied"), (0.5, "withdrawn")])
def test_a_hidden_setting_is_detected_by_the_periodic_comparison(later, status, monkeypatch):
    monkeypatch.setattr(proof, "EVERY", 4)
    monkeypatch.setitem(HIDDEN, 0, 1.0)
    net = Scheduled().cuda()
    optim = sgd(net.parameters())
    with hotlap.enable(None, with_=["cuda-graphs"]) as enabled:
        for step in range(60):
            HIDDEN[0] = 1.0 if step < 20 else later
            net(torch.randn(16, 48, device="cuda")).square().mean().backward()
            optim.step()
            optim.zero_grad()
        (outcome,) = enabled.outcomes
    assert outcome.status == status
    assert ("an output differs by" in outcome.why) == (status == "withdrawn")


def test_the_model_can_be_saved_and_is_released():
    keep, file = [], io.BytesIO()
    with hotlap.enable(None, with_=["cuda-graphs"]):
        train(keep=keep)
        torch.save(keep[0], file)
        gone = weakref.ref(keep.pop())
        gc.collect()
        assert gone() is None
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded(torch.ones(1, 48, device="cuda")).shape == (1, 10)


FORKING = """
import gc, os, sys, torch, hotlap
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    rows = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

def collect(worker):
    gc.collect()  # whatever waits for the collector goes now

def garbage(value):
    held = [value]
    held.append(held)

def train():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 1)).cuda()
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(Rows(), batch_size=16, num_workers=2, worker_init_fn=collect)
    for epoch in range(4):
        for inputs in loader:
            optim.zero_grad()
            loss = net(inputs.cuda()).square().mean()
            loss.backward()
            optim.step()
            garbage((loss, inputs.cuda(), torch.cuda.CUDAGraph()))
        print(epoch, loss.item(), torch.cuda.initial_seed(), flush=True)
        EVENT

enabled = hotlap.enable(None, with_=["cuda-graphs"], quiet=True) if "ours" in sys.argv else None
train()
print("end", os.getpid() == first, flush=True)
if enabled:
    sys.exit(0 if enabled.outcomes[0].status == "applied" else enabled.outcomes[0].why)
"""


@pytest.mark.parametrize(
    "event",
    [
        "pass",
        "os._exit(0) if os.fork() == 0 else os.wait()",
        "if os.fork(): os.wait()\n        else: return",  # goes on to the end of the program
        "if os.fork(): os.wait()\n        else: sys.exit(5)",
    ],
    ids=["workers", "child that ends at once", "child that goes on", "child that exits"],
)
def test_forking_after_graphs_exist_changes_nothing(event, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os; first = os.getpid()" + FORKING.replace("EVENT", event))
    plain = bare([sys.executable, str(script)], tmp_path)
    ran = bare([sys.executable, str(script), "ours"], tmp_path)
    assert ran.code == plain.code == 0, ran.stderr
    assert ran.stdout == plain.stdout
    assert re.sub("pid=[0-9]+", "pid", ran.stderr) == re.sub("pid=[0-9]+", "pid", plain.stderr)


def test_a_program_under_hotlap_run_prints_the_same(tmp_path):
    command = [sys.executable, str(PROGRAM), "--fault", "none", "--steps", "60"]
    alone = bare(command, tmp_path)
    ran = bare([sys.executable, "-m", "hotlap", "run", "--with", "cuda-graphs", *command], tmp_path)
    assert ran.code == alone.code == 0, ran.stderr
    assert ran.stdout == alone.stdout
    assert "applied: cuda-graphs" in ran.stderr


def test_expandable_segments_are_on(tmp_path):
    command = [sys.executable, str(PROGRAM), "--fault", "none", "--steps", "20"]
    ran = bare([sys.executable, "-m", "hotlap", "run", "--with", "allocator", *command], tmp_path)
    assert ran.code == 0, ran.stderr
    assert "applied: allocator" in ran.stderr
    assert "deprecated" not in ran.stderr
