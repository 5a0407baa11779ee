"""Two processes that train together on a CPU: the engine, Lightning, Accelerate and torch's DDP by hand.

`python benchmarks/engine/engine_ranks.py [--rounds 5] [--out FILE]`

Each run has two fresh processes of one thread each, by turns, started by the agent that torchrun runs. All train the
same model on the same rows from the same DataLoader over tensors, 64 rows of a batch in each process, with a fused
AdamW; nothing is evaluated, logged or saved. A sample is an epoch of the first process from its predecessor's end to
its own, so the first of each run is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers would import it in each fork
import torch.distributed as torch_distributed
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hotlap.bench.surroundings import look
from hotlap.judge.ratio import Work, ratio

EACH, COUNT, EPOCHS = 64, 2, 4  # rows of a batch in each process, processes, epochs of a run
WORKLOADS = {"cnn": (2048, 1), "mlp": (6144, 1), "mlp, 4 accumulated": (6144, 4)}  # rows, batches of a step
Clock = Callable[[], None]


def model_of(workload: str) -> nn.Module:
    torch.manual_seed(0)
    if workload == "cnn":
        first, second = nn.Conv2d(1, 8, 3, stride=2), nn.Conv2d(8, 16, 3, stride=2)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(576, 10))
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def data_of(workload: str) -> TensorDataset:
    generator, rows = torch.Generator().manual_seed(0), WORKLOADS[workload][0]
    shape = (rows, 1, 28, 28) if workload == "cnn" else (rows, 64)
    return TensorDataset(torch.rand(shape, generator=generator), torch.randint(10, (rows,), generator=generator))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def by_the_engine(workload: str, clock: Clock) -> None:
    from hotlap.engine import Callback, Recipe, Trainer

    class Marks(Callback):
        def epoch(self, training: Any, record: Any) -> None:
            clock()

    model, both = model_of(workload), EACH * COUNT
    recipe = Recipe(
        batch_size=both, accumulate=WORKLOADS[workload][1], precision="fp32", compile="off", onednn="on", threads=1
    )
    options: dict[str, Any] = {"say": lambda line: None, "progress": None, "device": "cpu", "callbacks": [Marks()]}
    trainer = Trainer(model, nn.functional.cross_entropy, adam(model), recipe, distributed="ddp", **options)
    trainer.fit(DataLoader(data_of(workload), batch_size=both, shuffle=True), epochs=EPOCHS)


def by_hand(workload: str, clock: Clock) -> None:
    torch_distributed.init_process_group("gloo")
    plain, dataset, accumulate = model_of(workload), data_of(workload), WORKLOADS[workload][1]
    model, optimizer = DistributedDataParallel(plain), adam(plain)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=EACH, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for number, (inputs, targets) in enumerate(loader, 1):
            model.require_backward_grad_sync = number % accumulate == 0
            loss = nn.functional.cross_entropy(model(inputs), targets) / accumulate
            loss.backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
        clock()


def by_lightning(workload: str, clock: Clock) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_of(workload)

        def training_step(self, batch: Any, number: int) -> Any:
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return adam(self.model)

        def on_train_epoch_end(self) -> None:
            clock()

    trainer = lightning.Trainer(
        accelerator="cpu", devices=COUNT, strategy="ddp", max_epochs=EPOCHS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=WORKLOADS[workload][1],
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(data_of(workload), batch_size=EACH, shuffle=True))


def by_accelerate(workload: str, clock: Clock) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=WORKLOADS[workload][1])
    plain = model_of(workload)
    loader = DataLoader(data_of(workload), batch_size=EACH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(plain, adam(plain), loader)
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
        clock()


ARMS = {"engine": by_the_engine, "DDP by hand": by_hand, "Lightning": by_lightning, "Accelerate": by_accelerate}


def train(arm: str, workload: str, out: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    marks: list[float] = []
    ARMS[arm](workload, lambda: marks.append(time.perf_counter()))
    if os.environ["RANK"] == "0":
        out.write_text(json.dumps([after - before for before, after in itertools.pairwise(marks)]))


def seconds_of(arm: str, workload: str) -> list[float]:
    """Return the seconds of each epoch but the first."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "epochs.json"
        config = LaunchConfig(
            1, 1, COUNT, run_id=out.parent.name, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0,
            start_method="fork",
        )  # fmt: skip
        launcher = os.fork()
        if not launcher:
            code = 1
            with contextlib.suppress(Exception):
                elastic_launch(config, train)(arm, workload, out)
                code = 0
            os._exit(code)
        if os.waitpid(launcher, 0)[1]:
            raise SystemExit(f"{arm} failed")
        found: list[float] = json.loads(out.read_text())
        return found


def compared(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how many times as fast as each other arm the engine is, by workload."""
    found = []
    for workload, (rows, _) in WORKLOADS.items():
        runs: dict[str, list[list[Work]]] = {arm: [] for arm in ARMS}
        for sample in samples:
            if sample["workload"] == workload:
                runs[sample["arm"]].append([Work(samples=rows, seconds=seconds) for seconds in sample["epochs"]])
        for arm in list(ARMS)[1:]:
            faster = asdict(ratio(runs["engine"], runs[arm]))
            found.append({"workload": workload, "against": arm, **faster})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # before anything is forked
    os.environ.update({"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"})
    versions = {name: import_module(name).__version__ for name in ("lightning", "accelerate")}  # once for all runs
    here, _ = look("cpu")
    samples: list[dict[str, Any]] = []
    for number in range(options.rounds):
        for workload in WORKLOADS:
            for arm in list(ARMS) if number % 2 else list(ARMS)[::-1]:
                epochs = seconds_of(arm, workload)
                samples.append({"round": number, "workload": workload, "arm": arm, "epochs": epochs})
                print(f"round {number}: {workload}, {arm}: {min(epochs):.3f} s", flush=True)
    summary = compared(samples)
    for line in summary:
        print(
            f"{line['workload']}: {line['value']:.2f} times {line['against']} [{line['low']:.2f}, {line['high']:.2f}]"
        )
    content = {
        "schema": 1,
        "benchmark": "engine-ranks",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": f"python benchmarks/engine/engine_ranks.py --rounds {options.rounds}",
        "machine": asdict(here.machine),
        "versions": {**dict(here.versions), **versions},
        "processes": COUNT,
        "times_as_fast": summary,
        "samples": samples,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
