"""Every command in the blocks of README and docs is typed, in a small project, and ends as the docs say.

Python and hotlap run in forks of processes that have made their imports, so that a command takes a second or two.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from once import made_once
from test_docs import FENCE, PAGES, SYNOPSIS
from warm import CLIENT, warm_socket

TYPED = re.compile(r"hotlap(?!:)|pip |python |torchrun |scripts/")
OF_OTHERS = {"benchmarks", "workloads"}  # whose pages say how results were made

NOT_RUN = {  # by how the command begins
    "pip install": "needs an index; tests/test_packaging.py installs the wheel offline",
    "scripts/demo": "makes an environment of its own, for minutes",
    "scripts/test": "is what runs these tests",
    "scripts/new-optimization": "writes into the checkout; tests/catalog/test_new_optimization.py runs it in a copy",
    "hotlap bench": "trains all workloads, for minutes to hours; tests/bench runs it on a scripted workload",
    "hotlap tune python": "as the tune in README, which is run",
    "hotlap tune --budget 1h": "as the tune in README, which is run",
    "hotlap profile --batch-sizes": "trains four times; tests/test_batch_sizes.py runs it",
    "torchrun --nnodes 2": "needs two machines; tests/engine/test_failing_processes.py has two launchers on one",
    "torchrun": "for a script that uses hotlap.engine; tests/engine/test_docs.py runs the one of engine-start.md",
}
ENDS = {  # exit codes besides 0, by how the command begins
    "hotlap doctor": {1},  # a problem of this machine
    "hotlap runs --verb": {72},  # of a verb that was never used here
    "hotlap scan": {1},  # something found
    "hotlap compare": {1, 2, 82},  # a regression, inconclusive, or too little time on a busy machine
    "hotlap tune": {82},
}
SHORT = {"tune": "--budget 12s", "compare": "--budget 8s --steps 25"}  # in place of longer ones

TRAIN = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        return torch.full((16,), index / 320).sin(), torch.tensor([index / 320])


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
epochs = parser.parse_args().epochs
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = DataLoader(Rows(), batch_size=8, shuffle=True)
for epoch in range(epochs):
    total = 0.0
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(loader):.4f} val acc {1 - total / len(loader):.4f}")
"""


def documented() -> list[tuple[str, str]]:
    """Return every command of a block, each once, with the page that has it first."""
    found: dict[str, str] = {}
    for page in PAGES:
        if OF_OTHERS & set(page.parts):
            continue
        for block in FENCE.findall(page.read_text(encoding="utf-8")):
            for line in block.splitlines():
                typed = re.sub(r"\s{2,}.*| +#.*", "", line.removeprefix("$ "))
                if TYPED.match(typed) and (typed.startswith("pip") or not SYNOPSIS.search(typed)):
                    found.setdefault(typed, page.name)
    return [(page, typed) for typed, page in found.items()]


def of(table, command, otherwise=None):
    return next((value for beginning, value in table.items() if command.startswith(beginning)), otherwise)


RUN = [(page, command) for page, command in documented() if of(NOT_RUN, command) is None]


def write_program(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def make_project(folder: Path) -> None:
    """A git project whose history has two states, and a run to look at."""
    home = folder / "home"
    for name in ("train.py", "old.py", "new.py", "examples/digits.py", "src/train.py"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(TRAIN)
    (home / "pyproject.toml").write_text("[project]\nname = 'home'\nversion = '1'\n")  # else a scan goes further up
    (home / ".gitignore").write_text("bin\n.venv\nstate\n")
    client, python = folder / "client.py", sys.executable
    client.write_text(CLIENT)
    warm, cold = f'exec {python} -I {client} "$SOCKETS/torch" "$@"', f'exec {python} "$@"'
    for name in ("bin/python", ".venv/bin/python"):
        write_program(home / name, f'case "$1" in *.py) {warm} ;; *) {cold} ;; esac')
    hotlap = Path(__file__).with_name("start_hotlap.py")
    write_program(home / "bin/hotlap", f'exec {python} -I {client} "$SOCKETS/hotlap" {hotlap} "$@"')
    write_program(home / "bin/torchrun", f'exec {python} -m torch.distributed.run "$@"')
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(home)]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "one"], ["switch", "-qc", "topic"]):
        subprocess.run([*git, *words], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "two"], check=True)
    assert typed("hotlap profile --steps 20 --no-ceiling python train.py", home).returncode == 0


def typed(command: str, home: Path) -> subprocess.CompletedProcess[str]:
    sockets = {Path(warm_socket(server)).parent for server in ("torch", "hotlap")}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOTLAP", "PYTEST"))}
    environment |= {
        "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        "HOTLAP_DIR": str(home / "state"),
        "HOTLAP_STRICT": "1",
        "OMP_NUM_THREADS": "1",
        "SOCKETS": str(sockets.pop()),
        "BROWSER": "true",
        "PET_MASTER_PORT": str(port),  # where torchrun's ranks meet
    }
    return subprocess.run(command, shell=True, cwd=home, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture
def home(tmp_path, tmp_path_factory):
    made = made_once(tmp_path_factory, "documented-project", make_project)
    shutil.copytree(made / "home", tmp_path / "home", symlinks=True)
    return tmp_path / "home"


@pytest.mark.parametrize(("page", "command"), RUN, ids=[f"{page}: {command}" for page, command in RUN])
def test_a_documented_command_runs(page, command, home):
    run = "$(ls state/runs | tail -n 1)"
    as_typed = re.sub(r"\bRUN\b", run, command).replace("CODE", "H201")
    as_typed = re.sub(r"\b2026\d{4}\b", time.strftime("%Y", time.gmtime()), as_typed)
    as_typed = re.sub(r"--budget \S+ ", "", as_typed)
    if verb := re.match("hotlap (tune|compare)(?! RUN)", command):
        as_typed = as_typed.replace(verb[0], f"{verb[0]} {SHORT[verb[1]]}")
    done = typed(as_typed, home)
    said = f"$ {as_typed}\n{done.stdout}{done.stderr}"
    assert done.returncode in {0} | of(ENDS, command, set()), said
    assert done.stdout or done.stderr, said
    assert "Traceback" not in done.stdout + done.stderr, said


def test_what_is_not_run_is_still_in_the_docs():
    commands = [command for _, command in documented()]
    assert all(any(command.startswith(beginning) for command in commands) for beginning in NOT_RUN)


@pytest.mark.parametrize("reason", NOT_RUN.values())
def test_the_tests_that_stand_in_for_commands_exist(reason):
    for name in re.findall(r"tests/[\w/]+(?:\.py)?|\.github/workflows", reason):
        assert (Path(__file__).resolve().parents[1] / name).exists(), name


def test_the_words_of_a_command_can_be_split():
    for _, command in documented():
        assert shlex.split(command)
