"""Is anything lost when processes of a shared training are killed? `engine_kill.py --out FILE [--kills 20]`

Two processes train under torchrun's agent with a checkpoint after each step, or each fourth where weights are shared
out, and kill -9 hits them at random moments, from joining each other to the last step: the first, the second, or all
with their launcher. `--max-restarts` starts them again, or this script does, with `resume="auto"`. A run that ends is
compared, bit by bit, with one that nobody killed: weights, moments, losses and scores. Dropout, running statistics and
a last, shorter batch are part of it.

For each kill: who was hit, which steps the last checkpoint holds, how many more were trained, and whether a checkpoint
was half written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import torch
import torch._dynamo  # optimizers would import it in each fork
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hotlap.bench.surroundings import look
from hotlap.engine import RMSE, Callback, Checkpoints, Cosine, Recipe, Trainer
from hotlap.engine.data import Tensors

ROWS, BATCH, EPOCHS = 1000, 32, 8
EVERY = {"ddp": 1, "fsdp": 4}  # steps between checkpoints
WAYS = tuple(EVERY)
EARLY = 0.3  # of the kills come within a second, while processes join, read and begin
FURTHEST = 24  # steps that the others let a run get on
HELD = 0.01  # seconds that a step takes at least


class Trace(Callback):
    """Notes each step when it is done, so that it is known how many a kill has cost."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def step(self, training: Any, record: Any) -> None:
        if training.is_first:
            self.path.write_text(str(record.step))
        time.sleep(HELD)


def train(folder: Path, way: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    (folder / f"process-{os.environ['RANK']}").write_text(str(os.getpid()))
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS + 200, 8, generator=generator)
    targets = inputs.square().sum(1, keepdim=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    kept = Checkpoints(folder / "kept", steps=EVERY[way])
    recipe = Recipe(batch_size=BATCH, clip=1.0, schedule=Cosine(), ema=0.99, log_every=1, compile="off", onednn="on",
                    checkpoints=kept)  # fmt: skip
    trainer = Trainer(
        model, nn.functional.mse_loss, torch.optim.AdamW(model.parameters(), lr=3e-3), recipe, metrics={"rmse": RMSE()},
        callbacks=[Trace(folder / "trace")], distributed=way, device="cpu", say=lambda line: None, progress=None,
    )  # type: ignore[arg-type]  # fmt: skip
    data = Tensors(inputs[:ROWS], targets[:ROWS])
    history = trainer.fit(data, Tensors(inputs[ROWS:], targets[ROWS:]), epochs=EPOCHS, resume="auto")
    tensors = [*trainer.model.state_dict().values()]
    tensors += [value for state in trainer.optimizer.state.values() for value in state.values()]
    whole = [tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for tensor in tensors]
    if trainer.is_first:
        torch.save((whole, [(record.loss, record.scores) for record in history.epochs]), folder / "ended.part")
        (folder / "ended.part").rename(folder / "ended.pt")


class Launched:
    """A training begun or continued in a folder, by the agent that torchrun runs. Its processes are forks of this one,
    which has imported torch: a start takes no seconds.
    """

    def __init__(self, folder: Path, way: str) -> None:
        self.folder = folder
        self.code: int | None = None
        self.launcher = os.fork()
        if not self.launcher:
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            code = 1
            with contextlib.suppress(Exception):
                config = LaunchConfig(
                    1, 1, 2, run_id=folder.name, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=1000,
                    monitor_interval=0.05, start_method="fork",
                )  # fmt: skip
                elastic_launch(config, train)(folder, way)
                code = 0
            os._exit(code)

    def processes(self) -> dict[str, int]:
        """Return the processes that have said that they begin, by number."""
        found = {}
        for number in "01":
            with contextlib.suppress(OSError, ValueError):
                process = int((self.folder / f"process-{number}").read_text())
                if psutil.pid_exists(process):
                    found[number] = process
        return found

    def ended(self) -> bool:
        if self.code is None:
            found, status = os.waitpid(self.launcher, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if found else None
        return self.code is not None

    def wait(self) -> int:
        while not self.ended():
            time.sleep(0.02)
        assert self.code is not None
        return self.code

    def await_both(self) -> bool:
        """Wait until both processes train; return whether they do, rather than that all is over."""
        while not self.ended():
            if len(self.processes()) == 2:
                return True
            time.sleep(0.02)
        return False

    def let_on(self, steps: int, seconds: float) -> float:
        """Wait for so many more steps, then for so long; return how long that took."""
        started, first = time.monotonic(), steps_of(self.folder)
        while not self.ended() and steps_of(self.folder) < first + steps:
            time.sleep(0.002)
        time.sleep(seconds)
        return time.monotonic() - started

    def kill(self, whom: str) -> None:
        if whom == "all":
            family = [self.launcher, *(child.pid for child in psutil.Process(self.launcher).children(True))]
        else:
            family = [self.processes()[whom]]
        for process in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for number in "01":
            (self.folder / f"process-{number}").unlink(missing_ok=True)
        if whom == "all":
            self.wait()


def outcome_of(folder: Path) -> tuple[list[torch.Tensor], Any]:
    found: tuple[list[torch.Tensor], Any] = torch.load(folder / "ended.pt", weights_only=False)
    return found


def same(first: tuple[list[torch.Tensor], Any], second: tuple[list[torch.Tensor], Any]) -> bool:
    pairs = zip(first[0], second[0], strict=True)
    return first[1] == second[1] and all(torch.equal(one, other) for one, other in pairs)


def steps_of(folder: Path) -> int:
    """Return the number of the last step that was noted; 0 where the note was just being written."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / "trace").read_text())
    return 0


def look_at(folder: Path, whom: str, seconds: float) -> dict[str, Any]:
    """Return what the kill has left; a checkpoint that cannot be read raises."""
    kept = folder / "kept"
    last = kept / "last.pt"
    state = torch.load(last, map_location="cpu", weights_only=True) if last.exists() else None
    saved = 0 if state is None else state["place"]["steps"] + state["place"]["window"]
    partly = any(kept.glob(".*.tmp"))  # of whole weights; shards are only known by the file that names them
    return {
        "hit": whom,
        "after": round(seconds, 3),
        "saved": saved,
        "trained": max(saved, steps_of(folder)),
        "half_written": partly,
    }


def rounds(way: str, kills: int, drawn: random.Random) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        calm = Path(place) / "calm"
        calm.mkdir()
        Launched(calm, way).wait()
        expected = outcome_of(calm)
        found: list[dict[str, Any]] = []
        equal: list[bool] = []
        while len(found) < kills:
            folder = Path(place) / "killed"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            found += killed(folder, way, kills - len(found), drawn)
            equal.append(same(outcome_of(folder), expected))
            print(f"{way}: {len(found)} kills, the result is {'the same' if equal[-1] else 'ANOTHER'}", flush=True)
    return {"way": way, "steps": len(expected[1]) * -(-ROWS // BATCH), "kills": found, "equal": equal}


def killed(folder: Path, way: str, most: int, drawn: random.Random) -> list[dict[str, Any]]:
    """Kill a run until it ends or was killed often enough; the last attempt runs to its end."""
    found: list[dict[str, Any]] = []
    run = Launched(folder, way)
    while len(found) < most and run.await_both():
        whom, is_early, share = drawn.choice(("0", "1", "all")), drawn.random() < EARLY, drawn.random()
        seconds = run.let_on(0 if is_early else int(share * FURTHEST), share if is_early else share * HELD)
        if run.ended() or len(run.processes()) < 2:
            break
        run.kill(whom)
        found.append(look_at(folder, whom, seconds))
        print(f"{way}: {found[-1]}", flush=True)
        run = Launched(folder, way) if whom == "all" else run
    if run.wait():
        raise SystemExit(f"a run that was killed did not go on: exit code {run.code}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each way")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # before anything is forked
    here, _ = look("cpu")
    drawn = random.Random(options.seed)
    runs = [rounds(way, options.kills, drawn) for way in options.ways]
    content = {
        "schema": 1,
        "benchmark": "engine-kill",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": f"python benchmarks/engine/engine_kill.py --kills {options.kills} --seed {options.seed}",
        "machine": asdict(here.machine),
        "versions": dict(here.versions),
        "checkpoint_every_steps": EVERY,
        "runs": runs,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if not all(all(run["equal"]) for run in runs):
        raise SystemExit("a run that was killed ended with another result")


if __name__ == "__main__":
    main()
