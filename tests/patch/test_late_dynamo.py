"""Dynamo runs when a program uses it, which then finds it as if it had been there all the time."""

from __future__ import annotations

import importlib

from hotlap.patch.imports import put_off, when_imported
from hotlap.process.launch import environment
from tests.patch.test_boot import clean, python, session

__all__ = ["session"]

TRAINING = """
import inspect, sys, threading, traceback, warnings
import torch
def has_run(): return "torch._dynamo.eval_frame" in sys.modules
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
def step(model=model):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))
for _ in range(3): step()
optimizer.load_state_dict(optimizer.state_dict())
inspect.stack()
"""
ONLY_TRAINING = """
from torch.utils._python_dispatch import TorchDispatchMode
class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return operation(*args, **(kwargs or {}))
with Mode(): step()
print(torch.utils.checkpoint.checkpoint(model, torch.ones(2, 4), use_reentrant=True).shape)
import torch._dynamo
assert not has_run() if ENTERED else has_run()
print(torch._dynamo.graph_break(), torch._dynamo.__name__, hasattr(torch._dynamo, "__version__"))
"""
USES: dict[str, str] = {
    "a submodule": "from torch._dynamo.utils import counters; print(len(counters))",
    "a compiled model": "torch._dynamo.reset(); compiled = torch.compile(model, backend='eager'); step(compiled)",
    "a setting": "torch._dynamo.mine = 3; print(torch._dynamo.mine, has_run()); del torch._dynamo.mine",
    "several threads": """
said = []
threads = [threading.Thread(target=lambda: said.append(torch._dynamo.is_compiling())) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(said)""",
    "what it does not have": """
try: torch._dynamo.nothing
except AttributeError: traceback.print_exc(file=sys.stdout)
try: from torch._dynamo import nothing
except ImportError: traceback.print_exc(file=sys.stdout)""",
}
AFTERWARDS = """
assert has_run()
for _ in range(2): step()
print(type(torch._dynamo), torch._dynamo.__path__ == torch._dynamo.__spec__.submodule_search_locations)
print(sorted(vars(torch._dynamo)), torch._dynamo.graph_break.__module__)
"""
EACH_IN_A_CHILD = """
import networkx, os, sympy  # which Dynamo would import in each child
import torch.fx.experimental.symbolic_shapes
assert has_run() is not ENTERED
for use in USES:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        exec(use + AFTERWARDS)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, use
"""


def test_dynamo_runs_when_it_is_used(session):
    """The program goes on in a child for each use, since it can run only once in a process."""
    names = f"USES, AFTERWARDS = {list(USES.values())!r}, {AFTERWARDS!r}\n"
    said = []
    base = {**clean(), "PYTHONPATH": str(session.parent)}
    for env in (base, environment(session, base)):
        program = f"ENTERED = {'HOTLAP_SESSION' in env}\n" + names + TRAINING + ONLY_TRAINING + EACH_IN_A_CHILD
        said.append(python("-c", program, env=env).stdout)
    plain, entered = said
    assert entered == plain
    assert plain.count("<class 'module'> True") == len(USES)


def test_who_waits_for_a_module_that_is_put_off_is_called_once_it_runs(tmp_path, monkeypatch):
    (tmp_path / "put_off_here.py").write_text("here = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    begun, said = [], []
    assert put_off("put_off_here", lambda module, execute: begun.append(execute))
    module = importlib.import_module("put_off_here")
    when_imported("put_off_here", lambda module: said.append(module.here))
    assert not hasattr(module, "here")
    assert not said
    begun[0]()
    assert said == [True]
    when_imported("put_off_here", lambda module: said.append(module.here))
    assert said == [True, True]
    assert not put_off("put_off_here", lambda module, execute: None)
