"""compile serves the inputs a root module sees most, leaves nothing on the module, and a failure does no harm.

Dynamo is real; its graphs run as they are (backend "eager"), except in the one test that compiles end to end.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from importlib import import_module

import numpy as np
import pytest
import torch
from harness import HOTLAP, bare, printed_losses
from torch import nn

import hotlap
from hotlap.catalog.compile.detect import detect
from tests.observations import model, observation

APPLY = import_module("hotlap.catalog.compile.apply")  # the package has a function of the same name


@pytest.fixture
def enable(monkeypatch):
    """Enables the entry without a compiler: Dynamo's graphs run as they are."""
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    made = []

    def compiled(torch, function, mode):
        made.append(mode)
        return torch.compile(function, dynamic=False, backend="eager")

    monkeypatch.setattr(APPLY, "compiled", compiled)
    torch._dynamo.reset()

    def enable(name="compile"):
        return made, hotlap.enable(None, with_=[name])

    yield enable
    hotlap.disable()
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.dropout = nn.Dropout(0.3)

    def forward(self, inputs):
        return self.last(self.dropout(self.norm(self.first(inputs).relu())))


def train(make=Net, sizes=(6,) * 10, evaluate=False):
    torch.manual_seed(0)
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []
    for size in sizes:
        loss = net(torch.randn(size, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        if evaluate:
            net.eval()
            with torch.no_grad():
                seen.append(net(torch.ones(2, 4)).sum().item())
            net.train()
    return net, [*seen, torch.rand(1).item()]


@pytest.mark.parametrize("sizes", [(6,) * 10, (6, 6, 6, 6, 2) * 3, (2, 6, 6, 6, 6, 6, 6, 6)])
def test_trains_the_same_and_compiles_for_one_shape(sizes, enable):
    _, plain = train(sizes=sizes, evaluate=True)
    _, enabled = enable()
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    _, compiled = train(sizes=sizes, evaluate=True)
    (outcome,) = enabled.outcomes
    assert outcome.status == "applied"
    assert "operations in 1 graph; compiled in" in outcome.why
    assert "first backward" in outcome.why
    assert compiled == plain
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 1


def test_compiles_a_root_that_contains_modules_of_its_own_class(enable):
    def nested():
        return nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 1))

    _, plain = train(nested)
    _, enabled = enable()
    assert train(nested)[1] == plain
    assert "in 1 graph" in enabled.outcomes[0].why


def test_the_module_is_saved_unchanged(enable):
    enable()
    net, _ = train()
    assert "forward" not in vars(net)
    file = io.BytesIO()
    torch.save(net, file)
    hotlap.disable()
    assert "__call__" not in vars(Net)
    file.seek(0)
    assert list(torch.load(file, weights_only=False).state_dict()) == list(Net().state_dict())


def test_keeps_hooks_and_a_custom_forward_of_the_root(enable):
    calls = []

    def hooked():
        net = Net()
        net.register_forward_hook(lambda *_: calls.append(1))
        return net

    enable()
    net, _ = train(hooked)
    assert len(calls) == 10

    def own(inputs):
        return Net.forward(net, inputs)

    net.forward = own
    net(torch.ones(6, 4))
    assert vars(net)["forward"] is own


def test_the_value_is_the_mode(enable):
    made, enabled = enable("compile=max-autotune")
    train()
    assert made == ["max-autotune"]
    assert enabled.outcomes[0].value == "max-autotune"


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, inputs):
        return self.head(self.lstm(inputs[:, None])[0][:, -1])


def test_recurrent_models_are_left_alone(enable):
    _, plain = train(Recurrent)
    made, enabled = enable()
    assert train(Recurrent)[1] == plain
    assert enabled.outcomes[0].status == "no effect"
    assert "Dynamo skips nn.LSTM" in enabled.outcomes[0].why
    assert made == []


def test_has_no_effect_on_a_compiled_model(enable):
    made, enabled = enable()
    train(lambda: torch.compile(Net(), backend="eager"))
    assert enabled.outcomes[0].status == "no effect"
    assert "compiled already" in enabled.outcomes[0].why
    assert made == []


def test_has_no_effect_when_every_step_has_a_new_shape(enable):
    made, enabled = enable()
    train(sizes=range(2, 40))
    assert enabled.outcomes[0].status == "no effect"
    assert "a different shape at each step" in enabled.outcomes[0].why
    assert made == []


def test_a_failed_compilation_is_withdrawn_and_the_step_repeated(enable, monkeypatch):
    def failing(graph, inputs):
        torch.rand(7)  # even its effect on the random stream is undone
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(APPLY, "compiled", lambda torch, function, mode: torch.compile(function, backend=failing))
    _, plain = train()
    monkeypatch.setenv("HOTLAP_STRICT", "1")
    enabled = hotlap.enable(None, with_=["compile"])
    assert train()[1] == plain
    assert enabled.outcomes[0].status == "withdrawn"
    assert "Net could not be compiled (BackendCompilerFailed" in enabled.outcomes[0].why


class Crumbs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, inputs):
        first, second, third, last = self.layers
        inputs = first(inputs)
        torch._dynamo.graph_break()
        inputs = second(inputs)
        torch._dynamo.graph_break()
        inputs = third(inputs)
        torch._dynamo.graph_break()
        return last(inputs)


def test_withdraws_from_a_model_with_too_many_graph_breaks(enable):
    _, plain = train(Crumbs)
    _, enabled = enable()
    assert train(Crumbs)[1] == plain
    assert enabled.outcomes[0].status == "withdrawn"
    assert "broke into" in enabled.outcomes[0].why


class Counting(Net):
    calls = 0

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs) + 0.0 * self.calls


@torch._dynamo.config.patch(automatic_dynamic_shapes=False, allow_unspec_int_on_nn_module=False)
def test_withdraws_from_a_model_that_recompiles_at_each_step(enable):
    _, plain = train(Counting, sizes=(6,) * 14)
    _, enabled = enable()
    assert train(Counting, sizes=(6,) * 14)[1] == plain
    assert enabled.outcomes[0].status == "withdrawn"
    assert "again at each step" in enabled.outcomes[0].why


class DrawingFromNumpy(Net):
    """Dynamo turns NumPy's random number into one of torch's."""

    def forward(self, inputs):
        return super().forward(inputs) * torch.from_numpy(np.random.rand(1)).float()


class DrawingOtherwise(Net):
    """The model draws as many numbers in another order, as when a compiler chooses another layout."""

    def forward(self, inputs):
        rows = torch.rand(inputs.shape)
        return super().forward(inputs * (rows if torch.compiler.is_compiling() else rows.flip(0)))


@pytest.mark.parametrize("model", [DrawingFromNumpy, DrawingOtherwise])
def test_withdraws_before_different_random_numbers_are_used(model, enable):
    np.random.seed(0)
    plain = train(model)[1], np.random.rand()
    _, enabled = enable()
    np.random.seed(0)
    assert (train(model)[1], np.random.rand()) == plain
    assert enabled.outcomes[0].status == "withdrawn"
    assert enabled.outcomes[0].why == f"{model.__name__} draws different random numbers when it is compiled"


class DrawingLater(Net):
    scale = None

    def forward(self, inputs):
        made = super().forward(inputs)
        return made if self.scale is None else made * torch.from_numpy(np.random.rand(1)).float() * self.scale


def test_code_paths_not_met_at_first_run_uncompiled(enable):
    def trained():
        np.random.seed(0)
        net, losses = train(DrawingLater, sizes=(6,) * 8)
        net.scale = 2.0
        made = [net(torch.ones(6, 4)).sum().item() for _ in range(3)]
        return losses, made, np.random.rand(), torch.rand(1).item()

    plain = trained()
    _, enabled = enable()
    assert trained() == plain
    assert enabled.outcomes[0].status == "applied"


def test_an_error_in_the_users_forward_is_raised_unchanged(enable):
    class Failing(Net):
        def forward(self, inputs):
            if inputs.shape[0] == 6 and self.training and getattr(self, "broken", False):
                raise ValueError("mine")
            return super().forward(inputs)

    enable()
    net, _ = train(Failing)
    net.broken = True
    with pytest.raises(ValueError, match="mine"):
        net(torch.ones(6, 4))


PROGRAM = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 9):
    loss = model(torch.randn(4, 3)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item()!r}")
print(vars(model).keys() == vars(torch.nn.Linear(3, 1)).keys(), torch.rand(1).item())
"""


@pytest.mark.thorough
def test_an_unmodified_program_is_compiled_end_to_end(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    with redirect_stdout(io.StringIO()) as alone:
        exec(PROGRAM, {})
    command = [*HOTLAP, "run", "--with", "compile", sys.executable, "train.py"]
    ran = bare(command, tmp_path, TORCHINDUCTOR_COMPILE_THREADS="1")
    assert ran.code == 0, ran.stderr
    assert "applied: compile (Linear, 1 operations in 1 graph; compiled in" in ran.stderr
    assert printed_losses(ran.stdout) == pytest.approx(printed_losses(alone.getvalue()), rel=1e-5)
    assert ran.stdout.splitlines()[-1] == alone.getvalue().splitlines()[-1]


def test_estimates_its_gain_from_forward_and_backward():
    seen = observation()
    assert detect(seen).most == pytest.approx(seen.shares["forward"] + seen.shares["backward"])
    assert detect(observation(models=(model(compiled=True),))) is None
    assert detect(observation(models=(model(layers={"LSTM": 1, "Linear": 1}),))) is None


@pytest.mark.parametrize("how", ["backward", "grad"])
def test_second_order_gradients_use_the_uncompiled_model(how, enable):
    def train():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer, seen = torch.optim.SGD(net.parameters(), lr=0.1), []
        for _ in range(6):
            inputs = torch.randn(6, 4, requires_grad=True)
            loss = net(inputs).square().mean()
            if how == "grad":
                (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
            else:
                loss.backward(create_graph=True, inputs=[inputs])
                slope = inputs.grad
            loss = loss + slope.square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen

    alone = train()
    _, enabled = enable()
    assert train() == alone
    (outcome,) = enabled.outcomes
    assert (outcome.status, outcome.why.partition(",")[0]) == ("withdrawn", "the program differentiates its gradients")


def test_compiled_code_supports_a_second_backward(monkeypatch):
    """This compiles for real: torch's own backward frees the graph."""
    from torch._functorch import config

    monkeypatch.setenv("HOTLAP_STRICT", "1")
    monkeypatch.setattr(
        APPLY, "compiled", lambda torch, function, mode: torch.compile(function, dynamic=False, backend="aot_eager")
    )
    torch._dynamo.reset()
    assert config.donated_buffer
    with hotlap.enable(None, with_=["compile"]) as enabled:
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(6):
            loss = net(torch.randn(6, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()
        assert enabled.outcomes[0].status == "applied"
    torch._dynamo.reset()
    assert config.donated_buffer
