"""Seams opened on a real torch leave no trace, whenever they are closed."""

from __future__ import annotations

import pytest

from tests.patch.subprocesses import run_python

TORCH = """
import torch
import torch.optim.optimizer as optim
from hotlap.patch.guard import Guard
from hotlap.patch.seams import Seams
from hotlap.patch.tensors import open_indexing, open_tensors

OWNERS = (
    torch, torch.Tensor, torch._C.TensorBase, torch.cuda, torch.autograd, torch.nn.Module, torch.optim.Optimizer,
    torch.utils.data.DataLoader, torch.utils.data.dataloader._BaseDataLoaderIter, torch.amp.grad_scaler.GradScaler,
)

def state():
    return snapshot(*OWNERS), dict(optim._global_optimizer_pre_hooks), dict(optim._global_optimizer_post_hooks)

def assert_untouched(before):
    owners, pre, post = before
    assert_same(owners, *OWNERS)
    assert pre == optim._global_optimizer_pre_hooks and post == optim._global_optimizer_post_hooks

def open_seams(strict=True):
    seams = Seams(torch, Guard(strict=strict))
    seams.open()
    return seams

def training():
    '''A model, its optimizer, and a function that takes one step.'''
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.DataLoader(torch.arange(8.0).reshape(4, 2), batch_size=2)
    def step():
        for batch in data:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
        return loss.item()
    return model, optimizer, step
"""


def test_opening_and_closing_leaves_torch_unchanged(run_torch):
    run_torch(
        TORCH
        + """
training()[2]()
before = state()
seams = open_seams()
model, _, step = training()
seams.watch_calls_of(model)
seams.watch_calls_of(training()[0])
step()
seams.close()
assert_untouched(before)
assert "__call__" not in vars(torch.nn.Linear)
"""
    )


@pytest.mark.parametrize("on_cuda", [False, True])
@pytest.mark.parametrize("order", ["tensors, seams.ledger", "seams.ledger, tensors"])
def test_the_seams_on_tensors_leave_no_trace_either(run_torch, on_cuda, order):
    run_torch(
        TORCH
        + f"""
training()[2]()
before = state()
seams = open_seams()
tensors = open_tensors(seams, on_cuda={on_cuda})
tensors.later(open_indexing(seams).close)
training()[2]()
assert torch.arange(3)[torch.tensor([True, False, True])].tolist() == [0, 2]
for ledger in ({order}):
    ledger.close()
assert_untouched(before)
"""
    )


def test_closing_restores_dynamos_settings(run_torch):
    run_torch(
        TORCH
        + """
import torch._dynamo
from torch._dynamo import trace_rules
from torch._dynamo.callback import callback_handler as handler

def told():
    callbacks = list(handler.start_callbacks), list(handler.end_callbacks)
    return list(trace_rules.SKIP_DIRS), trace_rules.SKIP_DIRS_RE, callbacks, dict(vars(handler))

before, torch_before = told(), state()
seams = open_seams()
tensors = open_tensors(seams, on_cuda=False)
assert told() != before
seams.close()
tensors.close()
assert told() == before
assert_untouched(torch_before)
"""
    )


def test_the_seams_import_nothing_heavy_and_leave_dynamo_alone_once_closed():
    run_python(
        TORCH
        + """
seams = open_seams()
assert "torch._dynamo" not in sys.modules
seams.close()
assert "torch._dynamo" not in sys.modules
import torch._dynamo
from torch._dynamo import trace_rules
from torch._dynamo.callback import callback_handler as handler
import hotlap
assert not any(hotlap.__path__[0] in directory for directory in trace_rules.SKIP_DIRS)
assert not handler.start_callbacks and not handler.end_callbacks
"""
    )


def test_training_gives_the_same_numbers_under_open_seams(run_torch):
    run_torch(
        TORCH
        + """
def losses():
    step = training()[2]
    return [step() for _ in range(5)]

plain = losses()
seams = open_seams()
tensors = open_tensors(seams, on_cuda=True)
assert losses() == plain
"""
    )


def test_each_seam_is_heard_in_order(run_torch):
    run_torch(
        TORCH
        + """
seams, heard = open_seams(), []
for name in "loader_made iterating fetching optimizer_made stepping calling backward".split():
    getattr(seams, name).subscribe(
        lambda *_, name=name: heard.append(f"{name} <"), lambda *_, name=name: heard.append(f"{name} >")
    )
model, _, step = training()
seams.watch_calls_of(model)
assert heard == ["optimizer_made <", "optimizer_made >", "loader_made <", "loader_made >"]
heard.clear()
step()
one = "fetching calling backward stepping".split()
expected = ["iterating", *one, *one, "fetching"]
assert heard == [f"{name} {side}" for name in expected for side in "<>"], heard
"""
    )


CLOSED_DURING_A_STEP = """
def nothing(*_): pass

def others():
    optim.register_optimizer_step_pre_hook(nothing)
    optim.register_optimizer_step_post_hook(nothing)
"""


@pytest.mark.parametrize("when", ["alone", "others after us", "others around us"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_closing_inside_an_optimizer_step_lets_it_finish_and_removes_the_hooks_soon(run_torch, side, when):
    """Torch iterates over its global hooks, so removing one meanwhile would raise in the user's `step()`."""
    run_torch(
        TORCH
        + CLOSED_DURING_A_STEP
        + f"""
model, optimizer, step = training()
if "{when}" == "others around us":
    others()
seams, calls = open_seams(), []
def close(optimizer, *_):
    calls.append(optimizer)
    seams.close()
seams.stepping.subscribe({side}=close)
if "{when}" != "alone":
    others()
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
assert calls == [optimizer]
optimizer.step()
assert calls == [optimizer], "the hooks that remain are inert"
ours = [hook for hooks in (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks)
        for hook in hooks.values() if hook is not nothing]
assert not ours
"""
    )


@pytest.mark.parametrize("side", ["pre", "post"])
@pytest.mark.parametrize("place", ["earlier", "later"])
def test_closing_inside_another_tools_hook_lets_the_step_finish(run_torch, place, side):
    run_torch(
        TORCH
        + f"""
model, optimizer, step = training()
holder = []
def close(*_):
    holder[0].close()
register = optim.register_optimizer_step_{side}_hook
if "{place}" == "earlier":
    register(close)
holder.append(open_seams())
if "{place}" == "later":
    register(close)
register(lambda *_: None)
for _ in range(3):
    optimizer.step()
left = [*optim._global_optimizer_pre_hooks.values(), *optim._global_optimizer_post_hooks.values()]
assert not [hook for hook in left if type(getattr(hook, "__self__", None)).__module__.startswith("hotlap")]
"""
    )


def test_closing_inside_a_closure_of_lbfgs_lets_the_step_finish(run_torch):
    run_torch(
        TORCH
        + """
before = state()
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.LBFGS([weight])
training()[2]()
before = state()
seams = open_seams()
def closure():
    optimizer.zero_grad()
    loss = (weight - 3).square().sum()
    loss.backward()
    seams.close()
    return loss
optimizer.step(closure)
optimizer.step(closure)
assert_untouched(before)
assert torch.allclose(weight, torch.tensor(3.0))
"""
    )


def test_a_step_on_another_thread_is_not_disturbed_by_closing(run_torch):
    run_torch(
        TORCH
        + """
import threading
model, optimizer, _ = training()
inside, go = threading.Event(), threading.Event()
seams = open_seams()
def wait(*_):
    inside.set()
    go.wait(10)
optim.register_optimizer_step_pre_hook(wait)
optim.register_optimizer_step_pre_hook(lambda *_: None)
failures = []
def train():
    try:
        optimizer.step()
    except RuntimeError as failure:
        failures.append(failure)
thread = threading.Thread(target=train)
thread.start()
inside.wait(10)
seams.close()
go.set()
thread.join(10)
assert not failures, failures
"""
    )


def test_a_failing_subscriber_is_dropped_and_reported_once_and_training_continues(run_torch):
    output = run_torch(
        TORCH
        + """
expected = training()[2]()
seams, calls = open_seams(strict=False), []
def broken(*_):
    calls.append(1)
    raise ValueError("our bug")
def also_broken(*_):
    raise KeyError("another")
seams.backward.subscribe(broken)
seams.stepping.subscribe(also_broken, also_broken)
heard = []
seams.backward.subscribe(after=lambda *_: heard.append(1))
assert training()[2]() == expected
assert len(calls) == 1 and len(heard) == 2
assert len(seams.guard.failures) == 2
"""
    )
    assert output.count("hotlap:") == 1
    assert "broken at the seam 'backward called' failed (ValueError: our bug)" in output
    assert "your training continues" in output


def test_a_strict_guard_raises(run_torch):
    run_torch(
        TORCH
        + """
seams = open_seams(strict=True)
def broken(*_):
    raise ValueError("our bug")
seams.backward.subscribe(broken)
try:
    training()[2]()
except ValueError as error:
    assert str(error) == "our bug"
else:
    raise AssertionError("not raised")
"""
    )


def test_a_users_error_passes_through_and_subscribers_get_no_result(run_torch):
    run_torch(
        TORCH
        + """
seams, heard = open_seams(), []
seams.backward.subscribe(after=lambda instance, args, kwargs, result: heard.append(result))
seams.stepping.subscribe(before=lambda optimizer: heard.append("step"))
try:
    torch.ones(2, requires_grad=True).backward()
except RuntimeError as error:
    assert "scalar" in str(error)
assert heard == [None]
"""
    )


def test_the_parameters_of_every_patched_function_are_seen_as_without_the_patches(run_torch):
    """Programs pick what they pass on from a configuration by the names of the parameters."""
    run_torch(
        TORCH
        + """
import inspect

def signature(function):
    try:
        return inspect.signature(function)
    except ValueError:
        return None  # it wraps a function in C

def seen():
    functions = {
        (owner.__name__, name): function for owner in (*OWNERS, inspect, torch.utils.data.dataloader)
        for name, function in vars(owner).items() if isinstance(function, types.FunctionType)
    }
    return {key: (
        inspect.getfullargspec(function), signature(function), function.__defaults__, function.__kwdefaults__
    ) for key, function in functions.items()}

before, untouched = seen(), state()
seams = open_seams()
for _ in range(2):
    patched = [owner for owner, old in zip(OWNERS, untouched[0]) if dict(vars(owner)) != old]
    assert torch.autograd in patched and torch.utils.data.DataLoader in patched
    after = seen()
    assert not [(key, after[key], before[key]) for key in before if after[key] != before[key]]
    again = open_seams()
    again.ledger.wrap(torch.autograd, "backward", lambda original: lambda *args, **kwargs: original(*args, **kwargs))
again.close()
seams.close()
"""
    )


def test_hooks_of_the_program_have_the_ids_that_they_have_without_the_patches(run_torch):
    run_torch(
        TORCH
        + """
def next_id():
    with torch.nn.Linear(1, 1).register_forward_hook(print) as handle:
        return handle.id
before = next_id()
first, second = open_seams(), open_seams()
heard = []
second.stepping.subscribe(before=lambda *_: heard.append("second"))
first.stepping.subscribe(before=lambda *_: heard.append("first"))
training()[1].step()
assert heard == ["first", "second"]
first.close()
training()[1].step()
assert heard == ["first", "second", "second"]
second.close()
assert next_id() == before + 1
"""
    )


def test_isinstance_subclassing_and_signatures_survive_the_patches(run_torch):
    """Frameworks inspect what they are given: Lightning re-creates loaders from `__init__`'s signature."""
    run_torch(
        TORCH
        + """
import inspect, pickle
loader = torch.utils.data.DataLoader
signatures = inspect.signature(loader.__init__), inspect.signature(torch.optim.Optimizer.zero_grad)
seams = open_seams()
assert signatures == (inspect.signature(loader.__init__), inspect.signature(torch.optim.Optimizer.zero_grad))
made = []
seams.loader_made.subscribe(after=lambda loader, args, kwargs, result: made.append(loader))
class Mine(loader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
mine = Mine([1, 2, 3])
assert made == [mine] and isinstance(mine, loader) and len(list(mine)) == 3
optimizer = training()[1]
assert type(pickle.loads(pickle.dumps(optimizer))) is torch.optim.SGD
"""
    )


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_item_that_the_program_has_replaced_sees_the_reads_of_step_counts(run_torch, when):
    """An optimizer reads one step count per parameter; only while item() is torch's own do we read them past it."""
    run_torch(
        TORCH
        + f"""
calls, torchs = [], torch.Tensor.item
def replace():
    item = torch.Tensor.item
    torch.Tensor.item = lambda tensor: (calls.append(1), item(tensor))[1]

weight = torch.nn.Parameter(torch.ones(2))
weight.grad = torch.ones(2)
optimizer = torch.optim.Adam([weight], foreach=False)
optimizer.step()
{"replace()" if when == "before" else ""}
tensors = open_tensors(open_seams(), on_cuda=False)
{"replace()" if when == "after" else ""}
optimizer.step()
assert calls == [1]
"""
    )
