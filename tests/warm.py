"""Run programs in forks of a process that has already made their imports, which take longer than they do.

Use this only where the start of a process is not under test. How a program starts, fails, handles signals and starts
processes is tested with a Python of its own.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

TORCH = ("numpy", "torch", "torch._dynamo", "torch.utils.data")
IMPORTED = {  # by each server, before it is asked for anything
    "torch": TORCH,
    "frameworks": (*TORCH, "torchmetrics", "transformers.modeling_utils"),  # what the frameworks depend on
    "hotlap": ("hotlap.cli.profile",),
}
SERVERS = {"lightning_fit.py": "frameworks", "hf_trainer.py": "frameworks", "start_hotlap.py": "hotlap"}
FOLDER = "TESTS_WARM"  # a variable that holds the process that runs all tests and the folder of the socket

SERVER = r"""
import atexit, contextlib, importlib, json, os, select, signal, site, socket, sys, threading, types
for name in sys.argv[3:]:
    importlib.import_module(name)

def become(argv, cwd, env, descriptors):
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    own = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    sys.path[:] = own + [part for part in sys.path[1:] if part not in own]
    sys.modules.pop("sitecustomize", None)
    site.execsitecustomize()  # as Python does when it starts: this is how hotlap enters
    sys.argv[:], sys.orig_argv[:] = argv, [sys.executable, *argv]
    sys.path.insert(0, os.path.dirname(argv[0]))

def main_module(script):
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = script
    return vars(main)

def end(code):  # as Python does, but for taking all modules apart, which takes a second
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)

def run(sent, descriptors):
    asked = json.loads(sent)
    become(asked["argv"], asked["cwd"], asked["env"], descriptors)
    with open(sys.argv[0]) as file:
        program = compile(file.read(), sys.argv[0], "exec")
    try:
        exec(program, main_module(sys.argv[0]))
    except SystemExit as stop:
        if not isinstance(stop.code, int | None):
            raise
        end(stop.code or 0)
    end(0)

def attend(client):
    # Runs what the messenger asks for in a child and reports how it ended. Many are attended at once.
    sent, descriptors, _, _ = socket.recv_fds(client, 1 << 20, 3)
    child = os.fork()
    if child == 0:
        client.close()
        run(sent, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    ended = 0
    while not ended:
        if select.select([client], [], [], 0.02)[0]:
            for number in client.recv(16) or [signal.SIGKILL]:  # signals passed on, or the messenger is gone
                os.kill(child, number)
        ended, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(OSError):
        client.sendall(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)

def is_there(process):
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False

tests = int(sys.argv[2])  # the process that runs all tests
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen(64)
print("ready", flush=True)
while is_there(tests):
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if select.select([server], [], [], 0.5)[0]:
        client, _ = server.accept()
        if os.fork() == 0:
            server.close()
            attend(client)
        client.close()
"""

CLIENT = r"""
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
told = {"argv": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ)}
socket.send_fds(server, [json.dumps(told).encode()], [0, 1, 2])
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: server.sendall(bytes([number])))
code = int(server.recv(16))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def one_folder_for_all() -> None:
    """Make the folder of the socket; the process that starts the test workers calls this, and they use its server."""
    if FOLDER not in os.environ:
        folder = tempfile.mkdtemp(prefix="warm")  # a short path: that of a socket has at most about 100 characters
        os.environ[FOLDER] = f"{os.getpid()} {folder}"
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


@cache
def warm_socket(server: str) -> str:
    """Return the socket of the server, which the first caller starts and which ends with the tests."""
    one_folder_for_all()
    tests, folder = os.environ[FOLDER].split(" ", 1)
    place = f"{folder}/{server}"
    with Path(f"{place}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not Path(place).exists():
            command = [sys.executable, "-c", SERVER, place, tests, *IMPORTED[server]]
            started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert started.stdout is not None
            assert started.stdout.readline() == "ready\n"
    return place


def warm_python(folder: Path) -> str:
    """An interpreter whose programs have already imported torch; for where a command must begin with `python`."""
    path = folder / "python"
    if not path.exists():
        words = [sys.executable, "-I", "-c", CLIENT, warm_socket("torch")]
        draft = folder / f"python.{os.getpid()}"
        draft.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        draft.chmod(0o755)
        draft.replace(path)
    return str(path)


def warmed(command: list[str]) -> list[str]:
    """The command to use instead of `python script …`. The -I keeps hotlap out of the messenger."""
    assert command[0] == sys.executable
    assert Path(command[1]).suffix == ".py"
    socket = warm_socket(SERVERS.get(Path(command[1]).name, "torch"))
    return ["env", sys.executable, "-I", "-c", CLIENT, socket, *command[1:]]
