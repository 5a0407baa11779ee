"""torch.compile and torch.jit do not see hotlap: same results, same graphs, same breaks and no extra compilation."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.patch.dynamo import keep_out
from hotlap.patch.ledger import Ledger

COMPILE = """
import torch
from torch._dynamo.utils import counters
import hotlap
from hotlap.observe import span
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.patch.tensors import open_indexing, open_tensors

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
    def forward(self, x):
        return self.linear(x).relu().to(torch.float64).sum()

class Breaking(Net):
    def forward(self, x):
        x = self.linear(x)
        if x.sum().item() > 0:
            x = x + 1
        print(end="")
        return x.sin().sum()

def made(kind, compiled):
    torch.manual_seed(0)
    model = kind()
    return compiled(model)

def trained(model, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        loss = model(torch.full((2, 3), float(number)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

def counted(work):
    torch._dynamo.reset()
    counters.clear()
    result = work()
    kept = {key: dict(counters[key]) for key in ("stats", "graph_break", "recompiles", "frames")}
    return result, kept

def open_all(kind=Net):
    seams = Seams(torch, Guard(strict=True))
    seams.open()
    seams.watch_calls_of(kind())
    for ledger in (open_tensors(seams, on_cuda=True), open_tensors(seams, on_cuda=False), open_indexing(seams)):
        seams.ledger.later(ledger.close)
    return seams

def whole(model): return torch.compile(model, backend="eager", fullgraph=True)
def broken(model): return torch.compile(model, backend="eager")
def forward_only(model):
    model.forward = torch.compile(model.forward, backend="eager")
    return model
def in_place(model):
    model.compile(backend="eager")
    return model

class Recorder:
    def __init__(self): self.heard = []
    def enter_span(self, name): self.heard.append(f"{name} <")
    def leave_span(self, name): self.heard.append(f"{name} >")
"""

KINDS = pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("Net", "whole"),
        ("Net", "in_place"),
        ("Net", "forward_only"),
        ("Breaking", "broken"),
        ("Breaking", "in_place"),
        ("Breaking", "forward_only"),
    ],
)


@KINDS
def test_results_are_the_same_when_compiled_under_open_seams(run_torch, kind, how):
    run_torch(
        COMPILE
        + f"""
plain = counted(lambda: trained(made({kind}, {how})))
assert plain[1]["stats"]["unique_graphs"] > 0
assert bool(plain[1]["graph_break"]) == ({kind} is Breaking)
seams = open_all({kind})
assert counted(lambda: trained(made({kind}, {how}))) == plain
"""
    )


@KINDS
def test_a_compiled_function_outlives_opening_and_closing_the_seams(run_torch, kind, how):
    run_torch(
        COMPILE
        + f"""
def plainly():
    model = made({kind}, {how})
    return trained(model), trained(model), trained(model)

def around_us():
    model = made({kind}, {how})
    before = trained(model)
    seams = open_all({kind})
    during = trained(model)
    seams.close()
    return before, during, trained(model)

assert counted(around_us) == counted(plainly)
"""
    )


def test_tensor_functions_compile_while_tensor_methods_are_patched(run_torch):
    """hotlap patches `.to`, `.item` and indexing; tracing any of these patches would break the graph."""
    run_torch(
        COMPILE
        + """
def function(x):
    y = x.to(torch.float64)[x > 0]
    return torch.nonzero(y).sum() + y.sum() + (1 if y.equal(y) is None else 2)

def work():
    compiled = torch.compile(function, backend="eager")
    return [compiled(torch.arange(-2.0, 3.0)).item() for _ in range(3)]

plain = counted(work)
seams = open_all()
assert counted(work) == plain
"""
    )


@pytest.mark.parametrize("compiled_first", [False, True])
def test_watched_torch_functions_do_not_recompile_at_each_call(run_torch, compiled_first):
    """Compiled code checks `torch.nonzero` by identity: after eight failed checks Dynamo gives up with an error."""
    run_torch(
        COMPILE
        + f"""
torch._dynamo.config.capture_dynamic_output_shape_ops = True

def work(opened):
    compiled = torch.compile(lambda x: torch.nonzero(x).sum(), backend="eager", fullgraph=True)
    if {compiled_first}:
        compiled(torch.ones(3))
    seams = open_all() if opened else None
    results = [compiled(torch.ones(3)).item() for _ in range(12)]
    if seams:
        seams.close()
    return results

untouched = vars(torch)["nonzero"]
assert counted(lambda: work(True)) == counted(lambda: work(False))
assert vars(torch)["nonzero"] is untouched
"""
    )


def test_resetting_dynamo_does_not_break_the_seams(run_torch):
    run_torch(
        COMPILE
        + """
torch._dynamo.config.capture_dynamic_output_shape_ops = True
plain = counted(lambda: trained(made(Net, whole)))
before = dict(vars(torch._dynamo.callback.callback_handler))
seams = open_all()
torch._dynamo.reset()
assert counted(lambda: trained(made(Net, whole))) == plain
function = torch.compile(lambda x: torch.nonzero(x), backend="eager", fullgraph=True)
assert len(function(torch.ones(3))) == 3
seams.close()
assert dict(vars(torch._dynamo.callback.callback_handler)) == before
"""
    )


def test_the_seams_still_work_after_a_compilation(run_torch):
    run_torch(
        COMPILE
        + """
seams = open_all()
heard = []
seams.syncing.subscribe(lambda kind, tensor: heard.append(kind))
seams.calling.subscribe(lambda module, *_: heard.append("call"))
model = made(Net, in_place)
seams.watch_calls_of(model)
trained(model, steps=3)
assert heard.count("call") == 3
assert heard.count("item") == 3
"""
    )


def test_closing_while_dynamo_compiles_leaves_nothing_behind(run_torch):
    run_torch(
        COMPILE
        + """
trained(Net())
before = snapshot(torch.Tensor, torch.optim.Optimizer, torch.autograd)
seams = open_all()
def backend(graph, inputs):
    seams.close()
    return graph.forward
model = torch.compile(Net(), backend=backend)
trained(model)
assert_same(before, torch.Tensor, torch.optim.Optimizer, torch.autograd)
assert "__call__" not in vars(Net)
"""
    )


SPANS = """
def with_span(x):
    with hotlap.span("inside"):
        y = x.sin()
    return y + 1

@hotlap.span("decorated")
def decorated(x):
    return x.sin() + 1

def calls_decorated(x):
    return decorated(x)

def without(x):
    return x.sin() + 1
"""


@pytest.mark.parametrize("function", ["with_span", "decorated", "calls_decorated"])
@pytest.mark.parametrize("seams_open", [False, True])
def test_a_span_in_a_compiled_function_causes_no_graph_break_and_no_guard(run_torch, function, seams_open):
    """The function compiles once, with recording off or on, and stays valid when that changes."""
    run_torch(
        COMPILE
        + SPANS
        + f"""
if {seams_open}:
    open_all()

def work(function):
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    x = torch.ones(3)
    return [compiled(x).tolist() for _ in range(3)]

def switching(function, order):
    def switched():
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        results = []
        for recorder in order:
            span.record_to(recorder)
            results.append(compiled(torch.ones(3)).tolist())
        span.record_to(None)
        return results
    return switched

recorder = Recorder()
plain = counted(lambda: work(without))
assert counted(lambda: work({function})) == plain
assert counted(switching({function}, [None, recorder, None])) == plain
assert counted(switching({function}, [recorder, recorder, None])) == plain
assert counted(switching({function}, [recorder, Recorder(), Recorder()])) == plain
assert recorder.heard == []
span.record_to(recorder)
{function}(torch.ones(3))
assert [entry[-1] for entry in recorder.heard] == ["<", ">"], "not compiled, it is heard"
"""
    )


def test_a_span_around_a_compiled_call_is_heard(run_torch):
    run_torch(
        COMPILE
        + """
recorder = Recorder()
span.record_to(recorder)
model = torch.compile(Net(), backend="eager", fullgraph=True)
with hotlap.span("forward"):
    model(torch.ones(1, 3))
assert recorder.heard == ["forward <", "forward >"]
"""
    )


class Doubling(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.act = nn.BatchNorm1d(3), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus(self.act(self.norm(x)) * 2)


def test_torchscript_reads_torchs_own_source():
    calls = []

    def layer(original):
        def call(*args, **kwargs):
            calls.append(original)
            return original(*args, **kwargs)

        return call

    ledgers, x = (Ledger(), Ledger()), torch.randn(4, 3)
    for ledger, owner in zip(ledgers, (nn.modules.batchnorm._BatchNorm, nn.ReLU), strict=True):
        ledger.wrap(owner, "forward", layer)
        keep_out(ledger)
    model = Doubling()
    scripted = torch.jit.script(model)
    assert calls == []
    expected = model(x)
    assert len(calls) == 2  # the compilation has finished and everything is restored
    assert torch.allclose(scripted.eval()(x), model.eval()(x))
    assert expected.shape == x.shape
    for ledger in ledgers:
        ledger.close()
    assert torch.jit._script._script_impl.__module__ == "torch.jit._script"


def test_fx_records_torchs_own_calls():
    ledger, model = Ledger(), nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    plain = [str(node.target) for node in torch.fx.symbolic_trace(model).graph.nodes]
    trace = torch.fx.Tracer.trace
    ledger.wrap(nn.Linear, "__call__", lambda original: lambda *args, **kwargs: original(*args, **kwargs))
    keep_out(ledger)
    assert [str(node.target) for node in torch.fx.symbolic_trace(model).graph.nodes] == plain
    assert "__call__" in vars(nn.Linear)
    ledger.close()
    assert torch.fx.Tracer.trace is trace
    assert "__call__" not in vars(nn.Linear)
