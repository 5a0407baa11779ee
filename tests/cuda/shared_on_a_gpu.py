"""A training over NCCL, or of two processes on one GPU over gloo; test_processes.py runs it under torchrun."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as torch_distributed

from hotlap.engine import RMSE, Checkpoints, processes
from tests.engine.shared_trainings import Moving, Plain, joined
from tests.engine.training import Rows, numbers, trainer

TRAININGS = {
    "plain": dict,
    "accumulated": lambda: {"accumulate": 3, "clip": 0.5},
    "averaged": lambda: {"ema": 0.9, "train_metrics": {"train": RMSE()}},
    "moving": lambda: {"model": Moving},
}


def trained(device, epochs=2, resume=False, **options):
    data = (Rows(*numbers(rows, seed, device=str(device))) for rows, seed in ((71, 0), (69, 1)))
    made = trainer(**{"model": Plain, "device": device, "graph": "off", **options})
    return joined(made, made.fit(*data, epochs, resume))


def main(backend: str, way: str, folder: Path) -> None:
    torch.use_deterministic_algorithms(True)
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    expected = {}
    if torch_distributed.is_torchelastic_launched() and int(os.environ["RANK"]) == 0:
        launched = {name: os.environ.pop(name) for name in ("WORLD_SIZE", "RANK")}
        expected = {name: trained(device, **options()) for name, options in TRAININGS.items()}
        os.environ.update(launched)
    torch_distributed.init_process_group(backend)
    processes.started_together = lambda: 2  # a single process would otherwise train alone, without NCCL
    options = {"distributed": way}
    found = {name: trained(device, **options, **own()) for name, own in TRAININGS.items()}
    kept = Checkpoints(folder / "kept")
    trained(device, 1, checkpoints=kept, **options)
    found["resumed"] = trained(device, 2, "auto", checkpoints=kept, **options)
    torch.save((expected, found), folder / f"rank-{os.environ['RANK']}.pt")
    torch_distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
