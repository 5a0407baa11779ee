"""torchrun's agent with processes that are forks of one that has imported torch, so that a start takes no seconds.

Run as a program with a folder and the names of trainings in failing_trainings.py, it launches each in two processes and
writes what became of it: `NAME.txt` is what they printed, `NAME.json` the exit codes of the agents. A training of
shared_trainings.py is launched in the folder itself, and this program ends as it does.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch._dynamo  # optimizers would import it in each fork
import torch.distributed.fsdp
import torch.distributed.tensor
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.engine import failing_trainings, shared_trainings

LIMIT = 300  # seconds


def ended_as_by_python(function: Callable[..., None], *arguments: object) -> None:
    """Run the function as a program: an error is printed by `sys.excepthook`, and signals do what they usually do."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 0
    try:
        function(*arguments)
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:  # noqa: BLE001 - as Python does
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    atexit._run_exitfuncs()
    sys.stderr.flush()
    if code:
        os._exit(code)


def launch(
    function: Callable[..., None], folder: Path, nodes: int = 1, restarts: int = 0, processes: int = 2
) -> list[int]:
    """Launch the function in processes of one machine or as if of two; return the processes of their agents."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    agents = [os.fork()]
    if agents[0] and nodes == 2:
        agents.append(os.fork())
    if all(agents):
        return agents
    config = LaunchConfig(
        nodes, nodes, processes // nodes, run_id=folder.name, rdzv_backend="c10d", rdzv_endpoint=f"localhost:{port}",
        rdzv_configs={"is_host": len(agents) == 1}, max_restarts=restarts, monitor_interval=0.05, start_method="fork",
    )  # fmt: skip
    try:
        elastic_launch(config, ended_as_by_python)(function, folder)
    except BaseException:  # noqa: BLE001 - torchrun's own report is left out
        os._exit(1)
    os._exit(0)


def wait_for(agents: Sequence[int]) -> list[int | None]:
    """Return the exit codes; one that takes too long is ended, and None."""
    ends = time.monotonic() + LIMIT
    codes: dict[int, int | None] = {}
    while len(codes) < len(agents):
        for agent in set(agents) - set(codes):
            if time.monotonic() > ends:
                os.kill(agent, signal.SIGKILL)
                os.waitpid(agent, 0)
                codes[agent] = None
            elif (status := os.waitpid(agent, os.WNOHANG))[0]:
                codes[agent] = os.waitstatus_to_exitcode(status[1])
        time.sleep(0.02)
    return [codes[agent] for agent in agents]


def report(name: str, folder: Path) -> None:
    own, (what, _, sent) = folder / name, name.partition("-")
    own.mkdir()
    with (folder / f"{name}.txt").open("w") as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        nodes, restarts = 2 if what == "on_two_machines" else 1, 6 if what == "killed" else 0
        agents = launch(getattr(failing_trainings, what), own, nodes, restarts)
        os.dup2(before, 2)
    if sent:
        ends = time.monotonic() + LIMIT
        while len(list(own.glob("trains-*"))) < 2 and time.monotonic() < ends:
            time.sleep(0.02)
        os.kill(agents[0], getattr(signal, sent))
    (folder / f"{name}.json").write_text(json.dumps(wait_for(agents)))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    place, *names = sys.argv[1:]
    for name in names:
        if name in shared_trainings.PROCESSES:
            count = shared_trainings.PROCESSES[name]
            (code,) = wait_for(launch(getattr(shared_trainings, name), Path(place), processes=count))
            sys.exit(1 if code is None else code)
        report(name, Path(place))
