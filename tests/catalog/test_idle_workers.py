"""Workers that wait for the next epoch are noticed by no call of the program, and exhaust none of its limits."""

import importlib
import os
import signal
import subprocess
import sys

import psutil
import pytest
from catalog.loading import Rows, applied, outcome, shuffled
from harness import HOTLAP, environment
from warm import warmed

from hotlap.patch import forks

NAME = "loader-persistent"
applying = importlib.import_module("hotlap.catalog.loader_persistent.apply")
idling = importlib.import_module("hotlap.catalog.loader_persistent.idle_workers")

HEAD = """
import os, resource, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)
rows = torch.randn(96, 8)

class Rows(Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, i):
        return rows[i] + 0.1 * torch.randn(8), i % 4

def made():
    return DataLoader(Rows(), 16, shuffle=True, num_workers=2)

net = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.05)

def epoch(loader):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(loss.item().hex(), flush=True)

loader = made()
"""
PROGRAMS = {
    "waits for any child": """
def reaped(wait):
    try:
        while True: print(wait())
    except ChildProcessError: return
for wait in (os.wait, lambda: os.waitpid(-1, 0)[1], lambda: os.waitid(os.P_ALL, 0, os.WEXITED).si_status):
    epoch(loader)
    reaped(lambda: bool(wait()))
epoch(loader)
if os.fork() == 0: os._exit(7)
print(os.wait()[1])
""",
    "has few descriptors": """
loaders = [made() for _ in range(6)]
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
for _ in range(2):
    for loader in loaders: epoch(loader)
print(len(loaders))
""",
    "becomes a daemon": """
for _ in range(2): epoch(loader)
os.closerange(3, 256)
for _ in range(2): epoch(loader)
if os.fork():
    os.wait(); print("parent", flush=True); os._exit(0)
os.setsid(); os.closerange(3, 256)
epoch(loader)
""",
    "handles SIGCHLD late": """
ended = []
for _ in range(2): epoch(loader)
signal.signal(signal.SIGCHLD, lambda *_: ended.append(1))
time.sleep(0.3)
print(len(ended))
for _ in range(3):
    ended.clear(); epoch(loader); time.sleep(0.3); print(len(ended) > 0)
""",
    "replaces itself": """
import psutil
if len(sys.argv) == 1:
    for _ in range(2): epoch(loader)
    os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
print(len(psutil.Process().children()))
""",
}


LONGEST = ("has few descriptors", "becomes a daemon", "replaces itself")  # each ends them as `waits for any child` does


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.thorough) if what in LONGEST else what for what in PROGRAMS]
)
def test_a_program_does_not_notice_idle_workers(what, tmp_path):
    ours = same_as_alone(tmp_path / "program.py", HEAD + PROGRAMS[what])
    assert "applied: loader-persistent" in ours.stderr


@pytest.mark.thorough
def test_an_installed_package_that_counts_forks_keeps_them(tmp_path):
    (tmp_path / "site-packages").mkdir()
    counts = "\nforks = []\nos.register_at_fork(before=lambda: forks.append(1))\n"
    read = "for _ in range(3): epoch(loader); print(len(forks))\n"
    ours = same_as_alone(tmp_path / "site-packages" / "trainer.py", HEAD + counts + read)
    assert "runs functions at each fork" in ours.stderr


def same_as_alone(program, source):
    """Returns how the program ran with hotlap, once it has done the same without."""
    program.write_text(source)
    command = warmed([sys.executable, str(program)])
    plain, ours = (
        subprocess.run(
            whole,
            cwd=program.parent,
            env=environment(PYTHONUNBUFFERED="1"),
            capture_output=True,
            text=True,
            timeout=600,
        )
        for whole in (command, [*HOTLAP, "run", "--at-once", "--run-dir", "kept", *command])
    )
    assert ours.stdout == plain.stdout
    assert ours.returncode == plain.returncode == 0, ours.stderr
    return ours


def idle(loader):
    living = applying._living_workers.get(loader)
    return () if living is None else tuple(worker.pid for worker in living.iterator._workers)


def read(*loaders):
    for loader in loaders:
        assert len(list(loader)) == 3


def test_workers_stay_while_training_and_validation_take_turns():
    with applied(NAME):
        training, validation = shuffled(num_workers=2), shuffled(num_workers=1)
        read(training, validation)
        first = idle(training), idle(validation)
        for _ in range(3):
            read(training, training, validation)
        assert (idle(training), idle(validation)) == first
        assert len(first[0]) == 2
        assert len(first[1]) == 1


def test_only_the_loaders_iterated_last_keep_workers(constants):
    constants(applying, KEPT=2)
    others = psutil.Process().children()
    with applied(NAME):
        loaders = [shuffled(num_workers=1) for _ in range(3)]
        read(*loaders)
        assert [len(idle(loader)) for loader in loaders] == [0, 1, 1]
        assert len(psutil.Process().children()) == len(others) + 2
    assert psutil.Process().children() == others


def test_workers_of_a_loader_not_iterated_for_long_are_ended(constants):
    constants(applying, SOON=2)
    with applied(NAME):
        once, often = shuffled(num_workers=1), shuffled(num_workers=1)
        read(once, often, often)
        assert len(idle(once)) == 1
        read(often)
        assert (len(idle(once)), len(idle(often))) == (0, 1)


def test_none_are_kept_near_a_limit(constants):
    with applied(NAME):
        loader, other = shuffled(num_workers=1), shuffled(num_workers=1)
        read(loader)
        assert len(idle(loader)) == 1
        constants(idling, PART_IN_USE=0.0)
        read(other)
        assert idle(loader) == idle(other) == ()


def test_workers_killed_while_idle_are_replaced():
    with applied(NAME):
        loader = shuffled(num_workers=1)
        read(loader)
        (before,) = idle(loader)
        os.kill(before, signal.SIGINT)  # as Ctrl-C does, of which the program may go on
        applying._living_workers[loader].iterator._workers[0].join(timeout=10)
        read(loader)
        assert idle(loader) not in ((), (before,))


def test_a_handler_of_sigchld_set_later_withdraws_the_entry():
    before = signal.getsignal(signal.SIGCHLD)
    try:
        with applied(NAME) as running:
            loader = shuffled(num_workers=1)
            read(loader)
            signal.signal(signal.SIGCHLD, lambda *_: None)
            assert idle(loader) == ()
            read(loader)
            assert outcome(running)[0] == "withdrawn"
            assert idle(loader) == ()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_functions_imported_by_name_are_refused(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "wait", os.wait, raising=False)
    with applied(NAME) as running:
        shuffled(Rows(), num_workers=1)
        assert outcome(running)[0] == "refused"
        assert "imports wait from os" in outcome(running)[1]


def test_the_functions_are_the_programs_own_again_afterwards():
    before = os.wait, os.kill, signal.signal
    with applied(NAME):
        read(shuffled(num_workers=1))
    assert (os.wait, os.kill, signal.signal) == before


@pytest.mark.parametrize(
    ("package", "file", "counts"),
    [
        ("torch", "/x/site-packages/torch/multiprocessing/_atfork.py", False),
        ("matplotlib", "/x/dist-packages/matplotlib/font_manager.py", False),
        ("trainer", "/x/site-packages/trainer/loop.py", True),
        ("torch", "/home/someone/torch.py", True),
        ("random", f"{forks._standard_library()}random.py", False),
        ("trainer", f"{forks._standard_library()}site-packages/trainer.py", True),
        ("importlib", "<frozen importlib._bootstrap>", False),
    ],
)
def test_knows_whose_functions_run_at_forks(package, file, counts):
    assert forks._is_of_the_program(package, file) is counts
