"""Tunes without processes: a scripted runner, a judge of one rule, and records kept in a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from observations import observation
from scripted_runner import ScriptedRunner

from hotlap import store
from hotlap.plan import signature
from hotlap.records.codec import SCHEMA
from hotlap.records.decisions import BlockTrial, Decisions
from hotlap.records.observation import Observation
from hotlap.records.plan import Choice, Circumstances, Risk
from hotlap.records.trial import Trial
from hotlap.records.tune_record import Candidate, Metric, Screening, TuneRecord, TuneRequest
from hotlap.records.verdict import Decision, Gate, Speed, Verdict
from hotlap.workflows import tune as tuning
from hotlap.workflows.tune.book import Watcher

COMMAND = ("python", "train.py")


def candidate(entry: str, value: str | None = None, risk: str = "exact", most: float = 0.5) -> Candidate:
    return Candidate(entry=entry, code="X", value=value, risk=Risk(risk), most=most, why="scripted")


def record(run: str, *found: Candidate, budget: float = 3600, **asked) -> TuneRecord:
    values = {"metric": None, "steps": 40, "minimum": 1.02, "folder": str(Path.cwd()), "risk": Risk.ROUNDING}
    return TuneRecord(
        schema=SCHEMA,
        run=run,
        asked=TuneRequest(command=COMMAND, budget_seconds=budget, **values | asked),
        started="2026-01-01T00:00:00+00:00",
        circumstances=Circumstances(command=COMMAND, source="0", torch="2.13", hardware="2 cores"),
        machine="a machine",
        versions=(),
        candidates=found,
        not_tried=(),
        trials=(),
        verdicts=(),
        kept=(),
        seconds=0.0,
        finished=False,
        full_steps=None,
    )


def speed(trial: Trial) -> float:
    def rate(arm: str) -> float:
        blocks = [block for sample in trial.of(arm) for block in sample.blocks]
        return sum(one.samples for one in blocks) / sum(one.seconds for one in blocks)

    return rate("new") / rate("base")


def one_rule_judge(trial: Trial, noise: Trial, asked: TuneRequest, earlier: object = ()) -> Verdict:
    """Keeps what is faster by the minimum and has the same losses; undecided below five pairs when close to it."""
    ratio = speed(trial)
    same = all(
        one.losses == other.losses
        for one in trial.of("base")
        for other in trial.of("new")
        if one.seed_shift == other.seed_shift and not one.nudge
    )
    close = abs(ratio - asked.minimum) < 0.01 and len(trial.samples) < 10 and trial.stage != "lasting"
    decision = Decision.KEEP if ratio > asked.minimum and same else Decision.REJECT
    if close:
        decision = Decision.INCONCLUSIVE
    return Verdict(
        schema=SCHEMA,
        trial=trial.name,
        stage=trial.stage,
        entry=trial.entry,
        value=trial.value,
        decision=decision,
        why="scripted",
        speed=Speed(
            ratio=ratio,
            low=ratio - 0.01,
            high=ratio + 0.01,
            resampled="nothing",
            noise_low=None,
            noise_high=None,
            faster=ratio > asked.minimum,
            slower=ratio < 0.98,
            minimum=asked.minimum,
            smallest=None,
            more=1 if close else 0,
        ),
        gate=Gate(risk=trial.risk, passed=same, rule="losses equal", why=""),
        pays_off=None,
    )


def gains(**factors: float) -> Callable[[tuple[Choice, ...]], float]:
    """Seconds of a step: ten milliseconds, divided by the factor of each thing chosen."""

    def step_seconds(choices: tuple[Choice, ...]) -> float:
        seconds = 0.01
        for one in choices:
            key = one.name.replace("-", "_") + ("" if one.value is None else f"_{one.value}")
            seconds /= factors[key]
        return seconds

    return step_seconds


def screened(*on: str, off: tuple[str, ...] = (), is_over: bool = True) -> Screening:
    """One process that has kept some and switched others off."""
    tried = tuple(
        BlockTrial(
            names=(name,),
            on_top_of=(),
            at_step=1,
            without=(1.0,),
            with_=(1.0,),
            ratio=1.5 if name in on else 0.9,
            low=None,
            high=None,
            kept=name in on,
            cost=0.1,
            why="1.50 times as fast" if name in on else "0.90 times as fast, which is no clear gain",
        )
        for name in (*on, *off)
    )
    decisions = Decisions(
        schema=SCHEMA,
        pid=1,
        on=on,
        tried=tried,
        after=0.01,
        ratio=1.5,
        remembered=False,
        is_main=True,
        steps=100,
        seconds=3.0,
        spent=0.1,
        is_over=is_over,
    )
    return Screening(decisions=decisions, outcomes=(), seconds=7.0)


def begun(folder: Path, *found: Candidate, seen: Observation | None = None, **asked) -> store.Run:
    """A run whose tune is about to start."""
    run = store.create(COMMAND, folder)
    run.save("observation", seen or observation())
    run.save("tuning", record(run.id, *found, **asked))
    signature.mark(run.folder, store.key_root())
    return run


def go_on(
    run: store.Run, runner: ScriptedRunner, folder: Path, watcher: Watcher | None = None, judging=one_rule_judge
) -> tuning.TuneResult:
    return tuning.go_on(
        run,
        run.load("tuning", TuneRecord),
        watcher or Watcher(),
        run_dir=folder,
        make_runner=lambda *_: runner,
        judging=judging,
    )


def with_metric(tuning_: TuneRecord, metric: Metric) -> TuneRecord:
    return replace(tuning_, asked=replace(tuning_.asked, metric=metric))
