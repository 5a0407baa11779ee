"""The tables about the engine in benchmarks/README.md: loading data, evaluating files in one pass, kernels."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEAD = """## What the engine does besides the steps
"""
TEXTS = {
    "engine-start": """### Data ready to train on

Loading the data of the Bloom workload by `naive.py`, and by `fast.py` from a warm cache (`python
benchmarks/engine/engine_start.py`), in fresh processes, by turns, without imports. *cold* is `fast.py` with an empty
cache.
""",
    "engine-files": """### Files judged in one pass

The file-level evaluation of the leak workload, one file at a time as in `naive.py`, and all together as in `fast.py`
(`python benchmarks/engine/engine_files.py`), by turns in each of several processes. The target on a GPU is ten times.
""",
}
LOADER = """### A DataLoader handed in

How long an epoch of the engine takes, over the same loop by hand with the same fused optimizer, on one thread by turns
(`python benchmarks/engine/engine_loader.py`): by what the process computed, and on the wall. Augmented rows are fetched
each time, plain ones are kept.
"""
LOADER_HEADINGS = ("machine", "date", "torch", "augmented", "on the wall", "plain", "on the wall", "limit", "raw")
RANKS = """### Two processes that train together

How many times as fast an epoch of the engine is as one of torch's DDP by hand, Lightning and Accelerate, with the same
model, rows, loader and fused optimizer in two processes of one thread each, by turns
(`python benchmarks/engine/engine_ranks.py`). The engine keeps the rows of the loader in memory.
"""
KILLS = """### Two processes that are killed

kill -9 of one of two processes, or of both with their launcher, at random moments
(`python benchmarks/engine/engine_kill.py`). *lost* are the steps that had to be trained again, at most; *half written*
counts the kills that left a part of a checkpoint behind. The results are compared with those of a run that nobody
killed, bit by bit.
"""
RANK_HEADINGS = ("machine", "date", "torch", "workload", "DDP by hand", "Lightning", "Accelerate", "raw")
KILL_HEADINGS = (
    "machine",
    "date",
    "torch",
    "weights",
    "kills",
    "steps a checkpoint",
    "lost",
    "half written",
    "results",
    "raw",
)
ADAM = """### A step of Adam

torch's fused kernel against the engine's, each as a CUDA graph of ten steps, replayed by turns
(`python benchmarks/engine/engine_adam.py --out FILE`); medians, and the smallest and largest ratio of two turns.
"""
NORMS = """### Batch normalisation

In channels-last, forward and backward, with and without SiLU after it: torch's kernels against those of
`hotlap.engine.nn.BatchNorm2d`, each as a CUDA graph of ten, replayed by turns
(`python benchmarks/engine/engine_norms.py --out FILE`); medians, and the smallest and largest ratio of two turns.
Without an activation the layer leaves fp16 and fp32 to torch.
"""
NORM_HEADINGS = (
    "machine",
    "date",
    "torch",
    "shape",
    "type",
    "activation",
    "torch's µs",
    "engine's µs",
    "times faster",
    "raw",
)
ADAM_HEADINGS = ("machine", "date", "torch", "tensors", "clipped", "torch's µs", "engine's µs", "times faster", "raw")
HEADINGS = ("machine", "size", "date", "torch", "naive", "engine", "times faster [95 %]", "target", "results", "raw")


def section(folder: Path) -> list[str]:
    """Empty where there are no results."""
    parts = []
    for kind, text in TEXTS.items():
        paths = sorted((folder / "results").glob(f"*/*-{kind}*.json"), key=lambda path: (path.parent.name, path.name))
        if paths:
            lines = [HEADINGS, ("---",) * len(HEADINGS), *(_row(path, folder) for path in paths)]
            parts += [text, _table(lines)]
    paths = sorted((folder / "results").glob("*/*-engine-loader*.json"))
    if paths:
        rows = [_loader_row(path, folder) for path in paths]
        parts += [LOADER, _table([LOADER_HEADINGS, ("---",) * len(LOADER_HEADINGS), *rows])]
    for text, headings, kind, rows_of in (
        (RANKS, RANK_HEADINGS, "engine-ranks", _rank_rows),
        (KILLS, KILL_HEADINGS, "engine-kill", _kill_rows),
    ):
        rows = [row for path in sorted((folder / "results").glob(f"*/*-{kind}*.json")) for row in rows_of(path, folder)]
        if rows:
            parts += [text, _table([headings, ("---",) * len(headings), *rows])]
    for text, headings, pattern, named in (
        (
            ADAM,
            ADAM_HEADINGS,
            "engine-adam",
            lambda result: (result["model"], "no" if result["clip"] is None else "yes"),
        ),
        (NORMS, NORM_HEADINGS, "engine-norms", _norm),
    ):
        paths = sorted((folder / "results").glob(f"*/*-{pattern}*.json"))
        if paths:
            rows = [row for path in paths for row in _turn_rows(path, folder, named)]
            parts += [text, _table([headings, ("---",) * len(headings), *rows])]
    return [HEAD, *parts] if parts else []


def _table(lines: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _norm(result: dict[str, Any]) -> tuple[str, ...]:
    return "×".join(map(str, result["shape"])), result["dtype"], result["activation"]


def _turn_rows(path: Path, folder: Path, named: Callable[[dict[str, Any]], tuple[str, ...]]) -> list[tuple[str, ...]]:
    found = json.loads(path.read_text(encoding="utf-8"))
    about, raw = found["about"], f"[{path.name}]({path.relative_to(folder).as_posix()})"
    rows = []
    for result in found["results"]:
        theirs, ours = result["us"]["torch"], result["us"]["engine"]
        ratios = sorted(a / b for a, b in zip(theirs, ours, strict=True))
        medians = (statistics.median(samples) for samples in (theirs, ours))
        rows.append(
            (
                about["gpu"], about["date"][:10], about["torch"], *named(result),
                *(f"{result:.1f}" for result in medians),
                f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})", raw,
            )
        )  # fmt: skip
    return rows


def _loader_row(path: Path, folder: Path) -> tuple[str, ...]:
    found = json.loads(path.read_text(encoding="utf-8"))
    machine, shares = found["machine"], found["time_of_the_engine_over_by_hand"]
    return (
        f"{machine['cores']} cores of {machine['cpu']}",
        found["date"],
        machine["torch"],
        *("{:.3f} [{:.3f}, {:.3f}]".format(share["ratio"], *share["interval"]) for share in shares.values()),
        f"{found['limit']:g}",
        f"[{path.name}]({path.relative_to(folder).as_posix()})",
    )


def _rank_rows(path: Path, folder: Path) -> list[tuple[str, ...]]:
    found = json.loads(path.read_text(encoding="utf-8"))
    machine, lines = found["machine"], found["times_as_fast"]
    begin = f"{machine['cores']} cores of {machine['cpu']}", found["date"], machine["torch"]
    return [
        (*begin, workload, *(_times(line) for line in lines if line["workload"] == workload), _link(path, folder))
        for workload in dict.fromkeys(line["workload"] for line in lines)
    ]


def _kill_rows(path: Path, folder: Path) -> list[tuple[str, ...]]:
    found = json.loads(path.read_text(encoding="utf-8"))
    machine, rows = found["machine"], []
    for run in found["runs"]:
        kills, is_whole = run["kills"], run["way"] == "ddp"
        lost, partly = (
            max(kill["trained"] - kill["saved"] for kill in kills),
            sum(kill["half_written"] for kill in kills),
        )
        rows.append(
            (
                f"{machine['cores']} cores of {machine['cpu']}", found["date"], machine["torch"],
                "whole" if is_whole else "shared out", str(len(kills)),
                str(found["checkpoint_every_steps"][run["way"]]), str(lost), str(partly) if is_whole else "–",
                "the same" if all(run["equal"]) else "**differ**", _link(path, folder),
            )
        )  # fmt: skip
    return rows


def _link(path: Path, folder: Path) -> str:
    return f"[{path.name}]({path.relative_to(folder).as_posix()})"


def _row(path: Path, folder: Path) -> tuple[str, ...]:
    found = json.loads(path.read_text(encoding="utf-8"))
    machine, summary = found["machine"], found["summary"]
    cold = f" (cold {_seconds(found['cold']['seconds'][0])})" if "cold" in found else ""
    rounds = {sample["round"] for sample in found["samples"]}
    return (
        machine["gpu"] or f"{machine['cores']} cores of {machine['cpu']}",
        f"{found['size']}, {len(rounds)} rounds",
        found["date"],
        machine["torch"],
        _seconds(summary["seconds"]["naive"]),
        _seconds(summary["seconds"]["engine"]) + cold,
        _times(summary["times_faster"]),
        f"{found['asked_times_faster']:g}",
        "the same" if summary["results_alike"] else "**differ**",
        f"[{path.name}]({path.relative_to(folder).as_posix()})",
    )


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _times(faster: dict[str, Any]) -> str:
    span = "" if faster["low"] is None else f" [{faster['low']:.3g}, {faster['high']:.3g}]"
    return f"{faster['value']:.3g}{span}"
