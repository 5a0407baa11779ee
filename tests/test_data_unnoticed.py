"""Keeping data on the device or in memory does not change what a program writes, warnings and tracebacks included."""

from __future__ import annotations

import subprocess
import sys

import pytest
from harness import HOTLAP, environment
from warm import warmed

HEAD = """
import cProfile, pstats, sys, traceback
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
X = torch.randn(96, 8)

class Rows(Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, i):
        return X[i] * 1.5, i % 4

def trained(loader, epochs=4):
    net = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.05)
    for epoch in range(epochs):
        for x, y in loader() if callable(loader) else loader:
            loss = torch.nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(epoch, loss.item().hex())
"""
PROGRAMS = {
    "items that warn in workers": """
A = np.abs(X.numpy()); A[::9] = 0
class Logs(Rows):
    def __getitem__(self, i):
        return torch.from_numpy(np.clip(np.log(A[i]), -3, 3)) + 0.1 * torch.randn(8), i % 4
if __name__ == "__main__":
    trained(DataLoader(Logs(), 16, num_workers=1))
""",
    "source that Python warns of": """
class Asserts(Rows):
    def __getitem__(self, i):
        assert (i >= 0, "none before the first")
        return X[i] * (1.5 if i is not 0 else 2.5), i % 4
trained(DataLoader(Asserts(), 16))
""",
    "files that are never closed": """
import os
sys.unraisablehook = lambda error: print(error.exc_type)
for i in range(96):
    os.makedirs("d", exist_ok=True)
    with open(f"d/{i}.txt", "w") as file: file.write(str(i / 96))
class Files(Rows):
    def __getitem__(self, i):
        return X[i] * float(open(f"d/{i}.txt").read()), i % 4
trained(DataLoader(Files(), 16))
""",
    "an epoch under cProfile": """
loader = DataLoader(Rows(), 16, shuffle=True)
trained(loader)
profile = cProfile.Profile()
profile.enable()
trained(loader, 1)
profile.disable()
print([count for (_, _, name), (count, *_) in pstats.Stats(profile).stats.items() if name == "__getitem__"])
""",
    "an item and a sampler that fail": """
class Fails(Rows):
    def __getitem__(self, i):
        if i == 200: raise KeyError(i)
        return X[i % 96] * 1.5, i % 4
class Order:
    def __init__(self, last): self.last = last
    def __len__(self): return 96
    def __iter__(self):
        yield from range(95)
        if self.last is None: raise ValueError("no more")
        yield self.last
rows = Fails()
trained(DataLoader(rows, 16))
for last in (200, None):
    try:
        trained(DataLoader(rows, 16, sampler=Order(last)), 1)
    except Exception:
        traceback.print_exc()
rows.__class__.__len__ = lambda self: 201
for x in DataLoader(rows, 16): pass
""",
    "workers that the program ends": """
def early():
    loader = DataLoader(Rows(), 16, num_workers=1)
    iterator = iter(loader)
    print(type(iterator).__name__, isinstance(iterator, torch.utils.data.dataloader._MultiProcessingDataLoaderIter))
    for _ in range(4): yield next(iterator)
    for worker in iterator._workers: worker.is_alive()
    iterator._shutdown_workers()
if __name__ == "__main__":
    trained(early)
""",
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_writes_the_same_while_its_data_is_kept(what, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(HEAD + PROGRAMS[what])
    command = warmed([sys.executable, str(program)])
    plain = _ran(command, tmp_path)
    ours = _ran([*HOTLAP, "run", "--at-once", "--run-dir", "kept", *command], tmp_path)
    messages = [line for line in ours.stderr.splitlines() if line.startswith("hotlap:")]
    assert any("applied: resident-data" in line or "applied: loader-persistent" in line for line in messages), (
        ours.stderr
    )
    assert ours.stdout == plain.stdout
    assert [line for line in ours.stderr.splitlines() if line not in messages] == plain.stderr.splitlines()
    assert ours.returncode == plain.returncode


def _ran(command, folder):
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=600)
