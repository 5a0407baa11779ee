"""Does the judge call alike arms faster, and does it find what the power calculation promises?

`python benchmarks/prover/prover.py --out FILE` plays tunes on step times of real processes (prover_noise.py made
them): no process is started, and a speed-up is planted by dividing the new arm's seconds. Two pools:

- busy: recorded while the machine had other work, in the order they ran, from a random one on: the load comes and goes
  in the middle of a trial, as it did;
- calm: recorded while it had none, drawn at random.

An A/A tune is the noise trial, six candidates that change nothing, each alone with more processes per arm while it is
inconclusive; what was called faster is stacked; where none was, all are tried together; and what is left is tried once
more against the baseline, the last added peeled off until that is faster.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from prover_noise import machine
from prover_records import noise_trial, sample, trial

from hotlap.judge.power import Spread, chance, spread_of
from hotlap.judge.speed import speed
from hotlap.records.trial import Sample, Trial
from hotlap.records.verdict import Speed

RESULTS = Path(__file__).parents[1] / "results" / "arm-2-cores"
BUSY, CALM = RESULTS / "2026-11-15-step-noise.json", RESULTS / "2026-11-15-step-noise-calm.json"
STEPS_PER_BLOCK = 20
CANDIDATES = 6
NOISE_START, START, FINAL_START, MOST = 3, 2, 3, 8  # processes per arm
MINIMUM = 1.02

Process = list[float]  # seconds of its blocks
Draw = Callable[[], Process]


def processes_of(path: Path) -> list[Process]:
    steps = json.loads(path.read_text(encoding="utf-8"))["step_us"]
    return [
        [
            sum(microseconds[at : at + STEPS_PER_BLOCK]) / 1e6
            for at in range(0, len(microseconds) - STEPS_PER_BLOCK + 1, STEPS_PER_BLOCK)
        ]
        for microseconds in steps
    ]


def in_order(pool: list[Process], random: np.random.Generator) -> Draw:
    """Yield processes in order from a random one, round and round, in either direction."""
    at, step = int(random.integers(len(pool))), int(random.choice([-1, 1]))
    endless: Iterator[Process] = (pool[(at + step * number) % len(pool)] for number in range(10**9))
    return lambda: next(endless)


def at_random(pool: list[Process], random: np.random.Generator) -> Draw:
    return lambda: pool[int(random.integers(len(pool)))]


def rounds(draw: Draw, effect: float, count: int, begun: int = 0) -> list[Sample]:
    """Draw rounds A B, B A, A B …: one process of each arm per round."""
    found = []
    for number in range(begun, begun + count):
        for arm in ("base", "new") if number % 2 == 0 else ("new", "base"):
            seconds = [elapsed / (effect if arm == "new" else 1.0) for elapsed in draw()]
            found.append(sample(arm, seconds=seconds))
    return found


def noise_of(draw: Draw, count: int) -> Trial:
    found = rounds(draw, 1.0, count)
    return noise_trial(
        [sample for sample in found if sample.arm == "base"], [sample for sample in found if sample.arm == "new"]
    )


def tried(draw: Draw, noise: Trial, effect: float, start: int = START) -> Speed:
    """Add processes per arm while nothing is settled, as a tune does."""
    samples = rounds(draw, effect, start)
    while True:
        found = speed(trial(samples), noise, MINIMUM)
        assert found is not None
        per_arm = len(samples) // 2
        if found.faster or found.slower or found.more == 0 or per_arm >= MOST:
            return found
        samples += rounds(draw, effect, 1, per_arm)


def alike_tune(draw: Draw) -> dict[str, int]:
    noise = noise_of(draw, NOISE_START)
    alone = sum(tried(draw, noise, 1.0).faster for _ in range(CANDIDATES))
    called = min(alone, 1) + sum(tried(draw, noise, 1.0).faster for _ in range(alone - 1))
    called = called or int(tried(draw, noise, 1.0).faster)
    final = any(tried(draw, noise, 1.0, FINAL_START).faster for _ in range(called))
    return {"alone": alone, "kept": called, "final": int(final)}


def alike(pool: list[Process], draws: Callable[..., Draw], tunes: int) -> dict[str, Any]:
    random = np.random.default_rng(5)
    found = [alike_tune(draws(pool, random)) for _ in range(tunes)]
    return {
        "tunes": tunes,
        "trials_alone": tunes * CANDIDATES,
        "share_of_trials_called_faster": sum(tune["alone"] for tune in found) / (tunes * CANDIDATES),
        "share_of_tunes_with_a_candidate_called_faster": sum(tune["alone"] > 0 for tune in found) / tunes,
        "share_of_tunes_that_end_faster": sum(tune["final"] for tune in found) / tunes,
        "each_tune": found,
    }


def planted(pool: list[Process], effect: float, per_arm: int, times: int) -> dict[str, Any]:
    """Return how often an effect is found with a fixed number of processes, and what was promised before the trial."""
    random = np.random.default_rng(round(1000 * effect) + per_arm)
    promised, found = [], 0
    for _ in range(times):
        draw = at_random(pool, random)
        noise = noise_of(draw, 4)
        promised.append(chance(_spread(noise), per_arm, effect, MINIMUM))
        result = speed(trial(rounds(draw, effect, per_arm)), noise, MINIMUM)
        found += result is not None and result.faster
    truth = chance(_spread_of_pool(pool), per_arm, effect, MINIMUM)
    return {
        "effect": effect, "per_arm": per_arm, "times": times, "found": found / times,
        "promised_mean": statistics.mean(promised), "promised_from_the_whole_pool": truth,
    }  # fmt: skip


def _spread(noise: Trial) -> Spread:
    logs = [float(np.log(sum(block.seconds for block in sample.blocks))) for sample in noise.samples]
    found = spread_of([logs])
    assert found is not None
    return found


def _spread_of_pool(pool: list[Process]) -> Spread:
    found = spread_of([[float(np.log(sum(blocks))) for blocks in pool]])
    assert found is not None
    return Spread(deviation=found.deviation, freedom=7)  # as a noise trial of 4 + 4 knows it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=Path, default=BUSY, help="step times made by prover_noise.py")
    parser.add_argument("--calm", type=Path, default=CALM)
    parser.add_argument("--tunes", type=int, default=200)
    parser.add_argument("--times", type=int, default=200, help="for each planted effect")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    busy, calm = processes_of(options.busy), processes_of(options.calm)
    result: dict[str, Any] = {
        "benchmark": "prover",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "noise": {"busy": options.busy.name, "calm": options.calm.name},
        "minimum": MINIMUM,
        "spread_between_processes": {"busy": _spread_of_pool(busy).deviation, "calm": _spread_of_pool(calm).deviation},
        "alike": {},
    }
    for name, pool, draws in (("busy", busy, in_order), ("calm", calm, at_random)):
        result["alike"][name] = {"processes": len(pool), **alike(pool, draws, options.tunes)}
        shown = {key: value for key, value in result["alike"][name].items() if key != "each_tune"}
        print(f"A/A, {name}: {shown}", flush=True)
    result["planted"] = []
    for effect in (1.02, 1.05, 1.10):
        for per_arm in (2, 4, 8, 16, 32):
            result["planted"].append(planted(calm, effect, per_arm, options.times))
            print(result["planted"][-1], flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
