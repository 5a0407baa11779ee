"""Snippets run in separate processes, so that no scenario sees what another has patched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

PREAMBLE = """
import functools, gc, sys, types
import wrapt
from hotlap.patch.ledger import Ledger

def snapshot(*owners):
    return [dict(vars(owner)) for owner in owners]

def assert_same(before, *owners):
    for old, owner in zip(before, owners, strict=True):
        new = dict(vars(owner))
        changed = [key for key in {*old, *new} if old.get(key, snapshot) is not new.get(key, snapshot)]
        assert not changed, f"{owner} differs in {changed}"

def shout(original):
    @functools.wraps(original)
    def ours(*args, **kwargs):
        return f"ours({original(*args, **kwargs)})"
    return ours

def assert_gone(*seen):
    '''Nothing of ours can be reached from these objects.'''
    left, known = list(seen), set()
    while left:
        one = left.pop()
        if id(one) in known or isinstance(one, (types.ModuleType, types.FrameType)):
            continue
        known.add(id(one))
        code = getattr(one, "__code__", None)
        assert code is None or "shout" not in one.__qualname__, f"{one} is still reachable"
        skipped = getattr(one, "__globals__", None)
        left += [part for part in gc.get_referents(one) if part is not skipped]
"""


def run_python(code: str, *flags: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs the snippet after the preamble and asserts that it succeeds."""
    process = run_plain(PREAMBLE + textwrap.dedent(code), *flags, env=env)
    assert process.returncode == 0, process.stdout + process.stderr
    return process


def run_plain(code: str, *flags: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    inherited = {"PYTHONPATH": str(REPOSITORY)} if env is None else {}
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **inherited, **(env or {})},
        cwd="/",
    )


SERVER = """
import json, os, traceback
import torch, torch._dynamo
torch.set_num_threads(1)
torch.compile(torch.sin, backend="eager")(torch.ones(1))  # imports what every compilation needs
torch._dynamo.reset()
base = dict(globals())
for line in sys.stdin:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        status = 0
        try:
            exec(compile(json.loads(line), "<scenario>", "exec"), dict(base))
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said]), flush=True)
"""


class TorchProcesses:
    """Each scenario runs in a process forked from one that has only imported torch and compiled a function."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            cwd="/",
        )

    def run(self, code: str) -> str:
        """Returns what the scenario printed, after asserting that it succeeds."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(textwrap.dedent(code)) + "\n")
        self._server.stdin.flush()
        status, output = json.loads(self._server.stdout.readline())
        assert status == 0, output
        return output

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.kill()  # a worker forked by a test may hold the other end of its pipe open
        self._server.wait()
        self._server.stdout.close()
