"""Evaluate the files of the leak workload: one at a time, as its report did, against all of them in one pass.

`python benchmarks/engine/engine_files.py [--size small] [--device cuda] [--rounds 5] [--repeats 4] [--out FILE]`

Every round is a process of its own that does both by turns, after one of each that is kept as `first_seconds`. naive is
`evaluate_file_level` of workloads/leak, in float16 on CUDA as there: for every long segment of every file a read, a
copy, a forward and a host sync. engine is what fast.py does after each epoch: its data on the device, large batches,
the segments averaged by one scatter, one host sync. The weights are drawn, and scaled so that few files are near the
threshold: both must give the same F1. `--out` of a run before is gone on with.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_arms import FAST, SLOW, Record, data_folder, in_a_process, modules_of

WORKLOAD = "leak"
SPREAD = 4.0  # standard deviation of the logits: decided, as those of a trained network are


def decided(model: Any, mel: Any) -> Any:
    """Put half of the segments above the threshold, few of them near it."""
    import torch

    with torch.no_grad():
        logits = model.eval()(mel)[1]
        scale = SPREAD / logits.std()
        model.leak_head.weight.mul_(scale)
        model.leak_head.bias.sub_(logits.median()).mul_(scale)
    return model


def both_ways(folder: Path, device: str) -> dict[str, Callable[[], float]]:
    import torch

    with modules_of(WORKLOAD):
        import evaluation
        import fast
        import naive
    place = torch.device(device)
    settings = naive.defaults("report")
    data, labels, long = fast.load_part(folder / "valid.h5", place)
    model = decided(fast.build_model(settings), data.tensors[0].cpu())
    slow = naive.build_model(settings)
    slow.load_state_dict(model.state_dict())
    slow.to(place, memory_format=torch.channels_last)
    files, amp = naive.LeakSegments(folder / "valid.h5"), naive.amp_enabled(settings, place)
    recipe = fast.Training(settings.batch_size, 1, settings.learning_rate, fast.EVALUATION_ROWS, channels_last=True)
    trainer = fast.Trainer(
        model,
        fast.loss_function,
        naive.build_optimizer(model, settings),
        recipe.recipe(),
        metrics={"file_f1": fast.build_metrics(labels, long)["file_f1"]},
        device=place,
    )
    return {
        SLOW: lambda: float(evaluation.evaluate_file_level(slow, files, place, amp)),
        FAST: lambda: float(trainer.evaluate(data)["file_f1"]),
    }


def seconds_of(way: Callable[[], float]) -> tuple[float, float]:
    """Time one evaluation; both arms end with a number on the host, so the device is done."""
    began = time.perf_counter()
    found = way()
    return time.perf_counter() - began, found


def samples(folder: Path, device: str, number: int, repeats: int) -> list[dict[str, Any]]:
    ways = both_ways(folder, device)
    order = (SLOW, FAST) if number % 2 == 0 else (FAST, SLOW)
    first = {arm: seconds_of(ways[arm])[0] for arm in order}
    seconds: dict[str, list[float]] = {arm: [] for arm in order}
    result: dict[str, float] = {}
    for repeat in range(repeats):
        for arm in order if repeat % 2 == 0 else order[::-1]:
            took, result[arm] = seconds_of(ways[arm])
            seconds[arm].append(took)
    return [
        {
            "round": number,
            "arm": arm,
            "seconds": seconds[arm],
            "first_seconds": first[arm],
            "result": round(result[arm], 6),
        }
        for arm in order
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("tiny", "small", "report"), default="small")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=4, help="of each in a round")
    parser.add_argument("--out", type=Path)
    for name in ("--round", "--folder", "--began"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.round:
        folder, number = Path(arguments.folder), int(arguments.round)
        print(json.dumps({"both": samples(folder, arguments.device, number, arguments.repeats)}))
        return
    record = Record(arguments.out, "engine-files", arguments.size, arguments.device)
    words = ["--device", record.device, "--repeats", str(arguments.repeats)]
    words += ["--folder", str(data_folder(WORKLOAD, arguments.size))]
    for number in record.rounds(arguments.rounds):
        for sample in in_a_process(__file__, ["--round", str(number), *words], dict(os.environ))["both"]:
            record.add(sample)
    print(record.summary_line(), flush=True)


if __name__ == "__main__":
    main()
