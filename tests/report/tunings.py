"""Tunes for the tests of the report. Every number here is invented; none was measured.

`faster()` is a whole tune with every kind of outcome, and each scenario changes it in one way.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from hotlap.records.codec import SCHEMA
from hotlap.records.plan import Choice, Circumstances, Outcome, Risk, Status
from hotlap.records.trial import Block, EndReason, MetricValue, Sample, Trial, TrialStage
from hotlap.records.tune_record import Candidate, Metric, TuneRecord, TuneRequest
from hotlap.records.verdict import Decision, Gate, PaysOff, Speed, Verdict
from tests.observations import PROJECT

COMMAND = ("python", "train.py", "--epochs", "3")
BASE_MS = 38.0
BATCH = 64
CODES = {"loader-workers": "D101", "fused-optimizer": "C104", "compile": "C108", "gc-pauses": "H102", "tf32": "C101"}


def choice(name: str, value: str | None = None) -> Choice:
    return Choice(name=name, value=value)


def losses(steps: int, seed: int, wobble: float = 0.0) -> tuple[float, ...]:
    """A falling loss with the noise of its seed; `wobble` is what a different order of operations adds."""
    chance, other = random.Random(seed), random.Random(seed + 1)
    return tuple(
        0.35 + 2.1 * math.exp(-4 * i / steps) + chance.gauss(0, 0.05) + other.gauss(0, wobble) for i in range(steps)
    )


def blocks(step_ms: float, seed: int, count: int = 6, steps: int = 10) -> tuple[Block, ...]:
    chance = random.Random(seed)
    return tuple(
        Block(
            first=10 + i * steps,
            steps=steps,
            samples=float(steps * BATCH),
            seconds=steps * step_ms / 1000 * (1 + chance.gauss(0, 0.01)),
        )
        for i in range(count)
    )


def sample(number: int, arm: str, step_ms: float, steps: int = 70, **overrides: Any) -> Sample:
    shift = overrides.get("seed_shift", 0)
    values: dict[str, Any] = {
        "number": number,
        "arm": arm,
        "choices": (),
        "seed_shift": 0,
        "ended": EndReason.MEASURED,
        "why": "",
        "warmup_steps": 10,
        "warmup_seconds": 0.9,
        "startup_seconds": 2.4,
        "blocks": blocks(step_ms, number),
        "losses": losses(steps, shift, 0.0 if arm == "base" else 1e-4),
        "readings": (),
        "outcomes": (),
        "host_mb": 1_850.0,
        "device_mb": None,
        "seconds": 6.1,
    }
    return Sample(**values | overrides)


def broken(number: int, ended: EndReason, why: str) -> Sample:
    return sample(number, "new", 0.0, ended=ended, why=why, blocks=(), losses=(2.4, 2.3), readings=())


def trial(name: str, stage: TrialStage, samples: tuple[Sample, ...], **overrides: Any) -> Trial:
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "name": name,
        "stage": stage,
        "entry": None,
        "value": None,
        "base": (),
        "new": (),
        "risk": Risk.EXACT,
        "samples": samples,
    }
    return Trial(**values | overrides)


def speed(ratio: float, spread: float = 0.015, **overrides: Any) -> Speed:
    values: dict[str, Any] = {
        "ratio": ratio,
        "low": ratio * (1 - spread),
        "high": ratio * (1 + spread),
        "resampled": "processes",
        "noise_low": 0.991,
        "noise_high": 1.009,
        "faster": ratio * (1 - spread) > 1.02,
        "slower": ratio * (1 + spread) < 0.98,
        "minimum": 1.02,
        "smallest": 1.014,
        "more": 0,
    }
    return Speed(**values | overrides)


def gate(passed: bool | None = True, risk: Risk = Risk.EXACT, **overrides: Any) -> Gate:
    rules = {
        "exact": "losses bit-equal over 70 steps, 4 processes",
        "rounding": "losses inside the baseline's own band, 3 seeds",
        "numeric": "not worse on val_acc, margin 0.005, 3 seeds",
    }
    values: dict[str, Any] = {"rule": rules[risk], "why": "every loss is the same to the bit" if passed else ""}
    return Gate(risk=risk, passed=passed, **values | overrides)


def verdict(name: str, stage: TrialStage, decision: Decision, why: str, **overrides: Any) -> Verdict:
    values: dict[str, Any] = {"entry": None, "value": None, "speed": None, "gate": None, "pays_off": None}
    return Verdict(schema=SCHEMA, trial=name, stage=stage, decision=decision, why=why, **values | overrides)


def tried(
    number: int, entry: str, value: str | None, ratio: float, decision: Decision, why: str, **overrides: Any
) -> tuple[Trial, Verdict]:
    """One optimisation alone against the baseline: four processes and their verdict."""
    stage = overrides.pop("stage", TrialStage.ALONE)
    name = f"{stage}-{entry}" + (f"={value}" if value else "")
    outcome = Outcome(name=entry, code=CODES.get(entry, "X001"), status=Status.APPLIED, why="made up", value=value)
    arms = ("base", "new", "new", "base")
    ran = overrides.pop("samples", None) or tuple(
        sample(number + i, arm, BASE_MS / (ratio if arm == "new" else 1), outcomes=(outcome,) if arm == "new" else ())
        for i, arm in enumerate(arms)
    )
    values: dict[str, Any] = {"speed": speed(ratio), "gate": gate()}
    return (
        trial(name, stage, ran, entry=entry, value=value, new=(choice(entry, value),)),
        verdict(name, stage, decision, why, entry=entry, value=value, **values | overrides),
    )


def final(ratio: float = 2.4, seeds: int = 3, steps: int = 70) -> tuple[Trial, Verdict]:
    arms = ("base", "new", "new", "base", "base", "new")
    shifts = (0, 0, 1, 1, 2, 2) if seeds > 1 else (0,) * 6
    ran = tuple(
        sample(
            80 + i,
            arm,
            BASE_MS / (ratio if arm == "new" else 1),
            steps,
            seed_shift=shift,
            readings=(
                MetricValue(name="val_acc", step=steps, value=0.913 + 0.001 * shift + (0.0004 if arm == "new" else 0)),
            ),
            host_mb=1_850.0 if arm == "base" else 2_310.0,
            warmup_seconds=0.9 if arm == "base" else 14.3,
        )
        for i, (arm, shift) in enumerate(zip(arms, shifts, strict=True))
    )
    choices = (choice("loader-workers", "4"), choice("fused-optimizer"))
    return (
        trial("final", TrialStage.FINAL, ran, new=choices, risk=Risk.ROUNDING),
        verdict(
            "final",
            TrialStage.FINAL,
            Decision.KEEP,
            "proven faster, and its losses stay inside the baseline's own band",
            speed=speed(ratio),
            gate=gate(True, Risk("rounding"), why="largest distance 0.4 of the band"),
            pays_off=PaysOff(extra_seconds=13.4, steps=605, seconds=9.6),
        ),
    )


def noise(steps: int = 70) -> tuple[Trial, Verdict]:
    arms = ("base", "new", "new", "base")
    ran = tuple(sample(i, arm, BASE_MS, steps, seed_shift=i % 3) for i, arm in enumerate(arms))
    return trial("noise", TrialStage.NOISE, ran), verdict(
        "noise",
        TrialStage.NOISE,
        Decision.REJECT,
        "the baseline against itself",
        speed=speed(1.002, 0.009),
        gate=gate(),
    )


def attempts() -> tuple[tuple[Trial, Verdict], ...]:
    """Kept, rejected by speed, rejected by the gate, inconclusive, crashed, out of memory, peeled off, no effect."""
    out_of_memory = (sample(60, "base", BASE_MS), broken(61, EndReason.OUT_OF_MEMORY, "tried to allocate 2.1 GiB"))
    crashed = (
        sample(62, "base", BASE_MS),
        broken(63, EndReason.CRASHED, "RuntimeError: <b>bad</b> & [red]worse[/red]"),
    )
    keep, reject, unclear = Decision.KEEP, Decision.REJECT, Decision.INCONCLUSIVE
    return (
        tried(10, "loader-workers", "2", 1.71, keep, "1.71 times as fast and harmless"),
        tried(14, "loader-workers", "4", 2.05, keep, "2.05 times as fast and harmless"),
        tried(18, "fused-optimizer", None, 1.12, keep, "1.12 times as fast and harmless"),
        tried(22, "compile", "default", 1.09, keep, "1.09 times as fast and harmless"),
        tried(26, "gc-pauses", None, 1.004, reject, "not faster by at least 2 %: at most 1.02 times"),
        tried(30, "threads", "2", 0.61, reject, "slower: 0.61 times as fast", speed=speed(0.61, 0.03)),
        tried(
            34,
            "autocast",
            "bfloat16",
            1.33,
            reject,
            "faster, but val_acc is worse by 0.021",
            gate=gate(False, Risk("numeric"), why="val_acc 0.021 lower, margin 0.005"),
        ),
        tried(
            38,
            "channels-last",
            None,
            1.03,
            unclear,
            "the sample is too small for an effect of 2 %",
            speed=speed(1.03, 0.06, more=5, smallest=1.07),
            gate=gate(None, Risk("rounding"), why="one seed only", more=2),
        ),
        tried(
            42, "resident-data", None, 1.0, reject, "the process ran out of memory", samples=out_of_memory, **NOTHING
        ),
        tried(46, "whole-batch-fetch", None, 1.0, reject, "the process crashed", samples=crashed, **NOTHING),
        tried(50, "loader-workers", "4", 2.02, keep, "2.02 times as fast", stage=TrialStage.STACKED),
        tried(54, "fused-optimizer", None, 1.17, keep, "1.17 times as fast on top", stage=TrialStage.STACKED),
        tried(
            58,
            "compile",
            "default",
            0.97,
            reject,
            "on top of what is kept it gains nothing",
            stage=TrialStage.STACKED,
            speed=speed(0.97),
        ),
    )


NOTHING: dict[str, Any] = {"speed": None, "gate": None}


def asked(**overrides: Any) -> TuneRequest:
    values: dict[str, Any] = {
        "command": COMMAND,
        "budget_seconds": 600.0,
        "risk": Risk.NUMERIC,
        "metric": Metric(name="val_acc", pattern=r"val_acc: ([0-9.]+)", tag=None, higher_is_better=True, margin=None),
        "steps": None,
        "minimum": 1.02,
        "folder": PROJECT,
    }
    return TuneRequest(**values | overrides)


def tuning(pairs: tuple[tuple[Trial, Verdict], ...], **overrides: Any) -> TuneRecord:
    values: dict[str, Any] = {
        "schema": SCHEMA,
        "run": "20260102-030405-train",
        "asked": asked(),
        "started": "2026-01-02T03:04:05+00:00",
        "circumstances": Circumstances(
            command=COMMAND, source="0123456789abcdef", torch="2.8.0", hardware="AMD EPYC 9354, 8 cores"
        ),
        "machine": "AMD EPYC 9354, 8 cores, 64.0 GB, Linux 6.1",
        "versions": (("python", "3.11.7"), ("torch", "2.8.0"), ("hotlap", "0.1.0")),
        "candidates": tuple(
            Candidate(
                entry=verdict.entry,
                code=CODES.get(verdict.entry, "X001"),
                value=verdict.value,
                risk=Risk.EXACT,
                most=0.7,
                why="",
            )
            for _, verdict in pairs
            if verdict.stage == TrialStage.ALONE and verdict.entry
        ),
        "not_tried": (("cuda-graphs", "needs a GPU"), ("tf32", "needs a GPU"), ("sample-cache", "no budget left")),
        "trials": tuple(trial for trial, _ in pairs),
        "verdicts": tuple(verdict for _, verdict in pairs),
        "kept": (),
        "seconds": 552.0,
        "finished": True,
        "full_steps": None,
    }
    return TuneRecord(**values | overrides)


def faster(**overrides: Any) -> TuneRecord:
    last = final()
    result = {"kept": last[0].new, "speedup": last[1], "full_steps": 200_000}
    return tuning((noise(), *attempts(), last), **result | overrides)


def small() -> TuneRecord:
    last = final()
    return tuning((noise(), *attempts()[2:3], last), kept=last[0].new[1:], speedup=last[1])


def no_speedup() -> TuneRecord:
    return tuning((noise(), *attempts()[4:10]), asked=asked(metric=None, risk=Risk.EXACT))


def inconclusive() -> TuneRecord:
    ran, judged = final(1.03)
    unsure = replace(
        judged,
        decision=Decision.INCONCLUSIVE,
        why="the sample is too small for an effect of 2 %",
        speed=speed(1.03, 0.05, more=6),
        pays_off=None,
    )
    return tuning((noise(), *attempts(), (ran, unsure)), kept=ran.new, speedup=unsure)


def fallen_apart() -> TuneRecord:
    ran, judged = final(1.3)
    why = "together they change the loss: 0.08 outside the band"
    failed = replace(judged, decision=Decision.REJECT, why=why, gate=gate(False, Risk("rounding"), why=why))
    return tuning((noise(), *attempts(), (ran, failed)), speedup=failed)


def unfinished() -> TuneRecord:
    return tuning((noise(), *attempts()[:3]), finished=False, seconds=31.0)


def just_begun() -> TuneRecord:
    return tuning((), finished=False, seconds=0.4, not_tried=())


def one_process_each() -> TuneRecord:
    """A tune with the least it can have: no interval, no noise band, no losses."""
    ran = (sample(0, "base", BASE_MS, losses=()), sample(1, "new", 20.0, losses=()))
    bare = speed(1.9, low=None, high=None, noise_low=None, noise_high=None, resampled="nothing", smallest=None, more=4)
    pair = tried(0, "fused-optimizer", None, 1.9, Decision.INCONCLUSIVE, "one process each", samples=ran, speed=bare)
    return tuning((pair,), asked=asked(metric=None))


def not_a_number() -> TuneRecord:
    ran, judged = final()
    torn = tuple(
        replace(sample, losses=(*sample.losses[:30], math.nan, *sample.losses[31:])) if sample.arm == "new" else sample
        for sample in ran.samples
    )
    return tuning((noise(), (replace(ran, samples=torn), judged)), kept=ran.new, speedup=judged)


def large(entries: int = 30, steps: int = 2000) -> TuneRecord:
    """A tune with as many optimisations and losses as a page must hold."""
    pairs = tuple(
        tried(100 + 4 * i, f"made-up-{i:02}", None, 0.8 + 0.05 * i, Decision.REJECT, f"reason number {i}")
        for i in range(entries)
    )
    last = final(steps=steps)
    return tuning((noise(steps), *pairs, last), kept=last[0].new, speedup=last[1])


def hostile() -> TuneRecord:
    """A tune with text that looks like markup in every place where user text can appear."""
    bad = "</title><script>alert(1)</script>\"'><img src=x onerror=alert(1)> | `x` [red]y[/] \x1b[31m\x00 \udce4"
    crashed = (sample(0, "base", BASE_MS), broken(1, EndReason.CRASHED, bad))
    pair = tried(
        0, bad, bad, 1.0, Decision.REJECT, bad, samples=crashed, speed=None, gate=gate(False, rule=bad, why=bad)
    )
    ran, judged = final()
    metric = Metric(name=bad, pattern=bad, tag=None, higher_is_better=False, margin=None)
    return tuning(
        (noise(), pair, (ran, replace(judged, why=bad, gate=gate(rule=bad)))),
        asked=asked(command=("python", bad), metric=metric, folder=bad),
        machine=bad,
        versions=((bad, bad),),
        not_tried=((bad, bad),),
        kept=(choice(bad, bad),),
        speedup=replace(judged, why=bad, gate=gate(rule=bad)),
        run=bad,
        started=bad,
    )
