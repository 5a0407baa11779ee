"""Differences between the arms beside their losses reject, unless the baseline shows the same differences itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prover_records import noise_trial, sample, trial

from hotlap.judge.gates import gate
from hotlap.judge.late_slowdown import late_check
from hotlap.judge.memory import MemoryLimits
from hotlap.judge.rounding import NUDGE
from hotlap.records.plan import Risk
from hotlap.records.traces import Evaluation, Fingerprint, SavedFile, State, Temporary, Traces, Weight
from hotlap.records.trial import Block, MetricValue, TrialStage
from hotlap.records.tune_record import Metric

LOSSES = tuple(1.0 / (1 + step) for step in range(40))


def prints(name: str, *numbers: float, start: tuple[float, ...] = ()) -> Fingerprint:
    size = sum(number * number for number in numbers) ** 0.5
    return Fingerprint(name=name, digest=f"{hash(numbers) & (2**64 - 1):016x}", norm=size, sketch=numbers, start=start)


def traces(**changed) -> Traces:
    state = {
        "weights": (prints("Net.weight", 1.0, 2.0, start=(0.5, 1.0)), prints("Net.frozen", 3.0, start=(3.0,))),
        "optimizers": (prints("SGD: momentum", 0.5),),
        "streams": (("torch", "a"), ("cuda:0", "b")),
        "evaluations": (Evaluation(step=20, calls=4, total=8.0, size=10.0),),
        "memory": (),
        "reserved_mb": None,
        "unreadable": (),
        "world": 1,
        "held": (prints("ema.shadow", 1.0, 2.0),),
        "contents": (("table", "0" * 16),),
        "own_streams": (("rng", "c"),),
        "schedulers": (("schedule.milestones", "{3000: 1}"), ("schedule.best", "0.5")),
        "threads": 3,
    }
    whole = {
        "saved": (
            SavedFile(path="/w/last.pt", kind="torch", digest="0" * 16, words="", parts=(prints("weight", 1.0, 2.0),)),
            SavedFile(path="/w/log.csv", kind="text", digest="1" * 16, words="w"),
        ),
        "printed": ("epoch 1 loss 0.5 took 3.1 s", "done"),
        "complained": ("a warning",),
        "exit_code": 0,
        "tree_mb": 400.0,
        "temporary": Temporary(files=2, mb=1.0),
    }
    own = {name: value for name, value in changed.items() if name in state}
    return Traces(state=State(**state | own), **whole | {k: v for k, v in changed.items() if k not in state})


def ran(arm: str = "base", nudge: float = 0.0, readings=(), **changed):
    made = sample(arm, LOSSES, nudge=nudge, readings=readings)
    return replace(made, traces=traces(**changed), host_mb=changed.get("tree_mb", 400.0))


def judged(risk: Risk = Risk.EXACT, allowed: MemoryLimits | None = None, **changed):
    noise = noise_trial([ran()], [ran(nudge=NUDGE)])
    return gate(trial([ran(), ran("new", **changed)], risk), noise, None, (), allowed)


def test_equal_arms_pass_and_every_comparison_is_named():
    found = judged()
    assert found.passed
    assert {check.name for check in found.checks if check.passed} >= {
        "losses", "evaluation", "weights", "optimizer state", "random streams", "saved files", "printed lines",
        "error lines", "exit code", "host memory",
    }  # fmt: skip
    assert "random streams" in found.rule


LAST = traces().saved[0]
HARM = {
    "weights": {"weights": (prints("Net.weight", 1.0, 2.5), prints("Net.frozen", 3.0))},
    "optimizer state": {"optimizers": (prints("SGD: momentum", 0.0),)},
    "random streams": {"streams": (("torch", "z"), ("cuda:0", "b"))},
    "evaluation": {"evaluations": (Evaluation(step=20, calls=4, total=0.0, size=0.0),)},
    "saved files": {"saved": (replace(LAST, parts=(prints("weight", 0.0, 0.0),)), traces().saved[1])},
    "printed lines": {"printed": ("epoch 1 loss 0.6 took 3.1 s", "done")},
    "error lines": {"complained": ()},
    "exit code": {"exit_code": 3},
    "host memory": {"tree_mb": 900.0},
    "own random streams": {"own_streams": (("rng", "z"),)},
    "schedulers": {"schedulers": (("schedule.milestones", "{}"),)},
    "own tensors": {"held": (prints("ema.shadow", 0.0, 0.0),)},
    "own arrays": {"contents": (("table", "1" * 16),)},
    "threads": {"threads": 60},
    "temporary files": {"temporary": Temporary(files=100, mb=1.0)},
    "size of temporary files": {"temporary": Temporary(files=2, mb=900.0)},
}


@pytest.mark.parametrize("what", HARM)
def test_at_exact_any_difference_rejects_and_is_named(what):
    found = judged(**HARM[what])
    assert found.passed is False
    assert [check.name for check in found.checks if check.passed is False] == [what]
    assert what in found.why


CHANGED_KINDS = {
    "a frozen weight moved": {"weights": (traces().state.weights[0], prints("Net.frozen", 3.5, start=(3.0,)))},
    "a weight did not move": {"weights": (prints("Net.weight", 0.5, 1.0, start=(0.5, 1.0)), prints("Net.frozen", 3.0))},
    "evaluation gives nothing": HARM["evaluation"],
    "evaluation is cut short": {"evaluations": (Evaluation(step=20, calls=1, total=8.0, size=10.0),)},
    "zeros are saved": HARM["saved files"],
    "a file is missing": {"saved": (LAST,)},
    "a saved name is missing": {"saved": (replace(LAST, parts=()), traces().saved[1])},
    "the words of a file changed": {"saved": (LAST, replace(traces().saved[1], words="other"))},
    "a line is lost": {"printed": ("done",)},
    "the words of a line changed": {"printed": ("epoch 1 cost 0.5 took 3.1 s", "done")},
    "another stream was drawn from": HARM["random streams"],
    "memory": HARM["host memory"],
    "an own generator moved": HARM["own random streams"],
    "a schedule is emptied": HARM["schedulers"],
    "an average is zeroed": HARM["own tensors"],
    "an average is missing": {"held": ()},
    "threads are left": HARM["threads"],
}


@pytest.mark.parametrize("risk", [Risk.ROUNDING, Risk.NUMERIC])
@pytest.mark.parametrize("what", CHANGED_KINDS)
def test_a_difference_that_rounding_cannot_explain_rejects_at_every_risk(what, risk):
    if risk is Risk.ROUNDING:
        assert judged(risk, **CHANGED_KINDS[what]).passed is False
    else:
        failed = [check for check in judged(risk, **CHANGED_KINDS[what]).checks if check.passed is False]
        assert failed, what


def test_differences_of_the_size_of_rounding_pass_at_rounding_but_not_at_exact():
    near = {
        "weights": (prints("Net.weight", 1.0 + 1e-6, 2.0), prints("Net.frozen", 3.0)),
        "saved": (replace(LAST, parts=(prints("weight", 1.0 + 1e-6, 2.0),)), traces().saved[1]),
        "printed": ("epoch 1 loss 0.500001 took 3.1 s", "done"),
    }
    assert judged(Risk.ROUNDING, **near).passed
    assert judged(Risk.EXACT, **near).passed is False


def test_what_follows_the_rounding_of_a_loss_is_compared_at_exact_alone():
    follows = {"contents": (("table", "1" * 16),), "schedulers": (("schedule.best", "0.6"),)}
    assert judged(Risk.ROUNDING, **follows).passed
    assert judged(Risk.EXACT, **follows).passed is False


def test_what_only_the_new_arm_holds_is_not_harm():
    more = {"held": (*traces().state.held, prints("model.cache", 5.0)), "contents": (("other", "2" * 16),)}
    assert judged(**more, own_streams=(("rng", "c"), ("other", "d")), threads=12).passed


@pytest.mark.parametrize("risk", [Risk.EXACT, Risk.ROUNDING])
def test_a_tensor_that_varies_while_the_losses_do_not_is_left_out(risk):
    again = ran(held=(prints("ema.shadow", 1.0, 2.0), prints("meter.seconds", 3.1)))
    noise = noise_trial([again], [ran(nudge=NUDGE)])
    base, new = (
        ran(arm, held=(prints("ema.shadow", 1.0, 2.0), prints("meter.seconds", seconds)))
        for arm, seconds in (("base", 3.2), ("new", 1.1))
    )
    found = gate(trial([base, new], risk), noise, None)
    assert found.passed, found.why
    (own,) = [check for check in found.checks if check.name == "own tensors"]
    assert own.left_out == ("meter.seconds",)


def test_a_record_from_before_these_were_compared_is_judged_without_them():
    older = {"held": (), "contents": (), "own_streams": (), "schedulers": (), "threads": None, "temporary": None}
    noise = noise_trial([ran(**older)], [ran(nudge=NUDGE, **older)])
    assert gate(trial([ran(**older), ran("new")], Risk.EXACT), noise, None).passed


def test_numeric_risk_allows_a_different_number_of_draws_on_the_device():
    drawn = {"streams": (("torch", "a"), ("cuda:0", "z"))}
    assert judged(Risk.ROUNDING, **drawn).passed is False
    assert all(check.passed is not False for check in judged(Risk.NUMERIC, **drawn).checks)


def test_a_line_that_the_baseline_does_not_repeat_is_left_out_and_reported():
    again = ran(printed=("epoch 1 loss 0.5 took 2.9 s", "done"))
    noise = noise_trial([again], [ran(nudge=NUDGE)])
    slow = ("epoch 1 loss 0.5 took 9.9 s", "done")
    found = gate(trial([ran(), ran("new", printed=slow)], Risk.EXACT), noise, None)
    assert found.passed
    (lines,) = [check for check in found.checks if check.name == "printed lines"]
    assert lines.left_out == ("number 2 of epoch # loss # took # s",)
    wrong = ("epoch 1 loss 0.7 took 9.9 s", "done")
    assert gate(trial([ran(), ran("new", printed=wrong)], Risk.EXACT), noise, None).passed is False


def test_a_file_name_that_contains_the_time_is_not_a_different_file():
    def saved(clock):
        return (replace(LAST, path=f"/w/run-{clock}/last.pt"),)

    noise = noise_trial([ran(saved=saved(112))], [ran(saved=saved(113), nudge=NUDGE)])
    whole = trial([ran(saved=saved(114)), ran("new", saved=saved(115))], Risk.EXACT)
    assert gate(whole, noise, None).passed
    assert gate(trial([ran(saved=saved(114)), ran("new", saved=())], Risk.EXACT), noise, None).passed is False


def test_a_difference_is_not_evidence_when_no_seed_was_run_twice():
    found = gate(trial([ran(), ran("new", exit_code=3)], Risk.EXACT), None, None)
    assert found.passed is None
    assert found.more == 1
    assert "it is not known whether the baseline repeats that" in found.why


def test_a_change_in_evaluation_alone_is_reported_as_such():
    assert judged(**HARM["evaluation"]).why.startswith("training is the same, evaluation is not: ")
    both = judged(**HARM["evaluation"], **HARM["weights"])
    assert "training is the same" not in both.why


def test_a_metric_must_be_the_same_at_exact():
    def read(value):
        return (MetricValue(name="acc", step=20, value=value),)

    noise = noise_trial([ran(readings=read(0.9))], [ran(nudge=NUDGE)])
    same, worse = (
        trial([ran(readings=read(0.9)), ran("new", readings=read(value))], Risk.EXACT) for value in (0.9, 0.8)
    )
    assert gate(same, noise, None).passed
    assert "acc" in gate(worse, noise, None).why


def test_a_new_arm_without_a_state_is_not_evidence():
    silent = replace(ran("new"), traces=replace(traces(), state=None))
    noise = noise_trial([ran()], [ran(nudge=NUDGE)])
    assert gate(trial([ran(), silent], Risk.EXACT), noise, None).passed is None


# Memory


def growing(step_mb: float, first: float = 300.0, until: int = 200):
    return {
        "memory": tuple(Weight(step=s, host_mb=first + step_mb * min(s, until), device_mb=None) for s in range(1, 49))
    }


def test_steady_memory_growth_is_found_before_it_is_large():
    found = judged(**growing(0.8))
    assert found.passed is False
    assert "grows by" in found.why
    assert judged(**growing(0.02)).passed, "a breath is not growth"
    assert judged(**growing(4.0, until=20)).passed, "nor is what stops"


def test_memory_growth_that_starts_late_is_found():
    late = tuple(Weight(step=s, host_mb=300.0 + max(0, s - 24) * 2.0, device_mb=None) for s in range(1, 49))
    assert judged(memory=late).passed is False


def test_growth_of_the_baseline_excuses_equal_growth():
    leak = growing(2.0)
    noise = noise_trial([ran(**leak)], [ran(nudge=NUDGE, **leak)])
    assert gate(trial([ran(**leak), ran("new", **leak)], Risk.EXACT), noise, None).passed


def test_a_memory_limit_allows_use_up_to_that_limit():
    assert judged(tree_mb=900.0, allowed=MemoryLimits(host_mb=1000.0)).passed
    assert "--memory" in judged(tree_mb=900.0).why


# The last part of a long run


def long_run(new_last: float, pairs: int = 2):
    def run(arm, seconds):
        steps = tuple(
            Block(first=10 * n, steps=10, samples=10.0, seconds=duration) for n, duration in enumerate(seconds)
        )
        return replace(sample(arm, LOSSES), blocks=steps)

    base = [run("base", [1.0] * 12)] * pairs
    new = [run("new", [0.5] * 6 + [new_last] * 6)] * pairs
    return trial([*base, *new], Risk.EXACT, TrialStage.LASTING)


def test_a_late_slowdown_is_rejected_once_two_pairs_show_it():
    assert late_check(long_run(0.5), None).passed
    assert late_check(long_run(1.5, pairs=1), None).passed is None
    found = late_check(long_run(1.5), None)
    assert found.passed is False
    assert "becomes slower later" in found.why


@pytest.mark.parametrize("risk", [Risk.ROUNDING, Risk.NUMERIC])
@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (1.02, True), (1.4, False), (0.6, False)])
def test_one_longer_run_at_a_looser_risk_shows_obvious_harm(risk, factor, passed):
    """Three seeds ran before; at the end of a long run two baselines differ widely."""
    late = [loss * (factor if step > 150 else 1) for step, loss in enumerate(falling())]
    nudged = [loss * (1 + 0.001 * step % 0.02) for step, loss in enumerate(falling())]
    samples = [sample(losses=falling()), sample("new", losses=late), sample(losses=nudged, nudge=NUDGE)]
    found = gate(trial(samples, risk, TrialStage.LASTING), None, None)
    assert found.passed is passed, found.why


def test_a_metric_that_is_worse_at_the_end_of_a_longer_run_rejects():
    def run(arm, value):
        return sample(arm, falling(), readings=[MetricValue(name="acc", step=90, value=value)])

    accuracy = Metric(name="acc", pattern=None, tag=None, higher_is_better=True, margin=None)
    for value, passed in ((0.9, True), (0.95, True), (0.7, False)):
        whole = trial([run("base", 0.9), run("new", value)], Risk.NUMERIC, TrialStage.LASTING)
        assert gate(whole, None, accuracy).passed is passed


def falling() -> list[float]:
    return [1.0 + 2.0 / (1 + step / 20) for step in range(200)]


def test_a_slow_evaluation_is_not_mistaken_for_slower_training():
    base, new = [1.0] * 11 + [9.0], [0.5] * 11 + [8.5]

    def run(arm, seconds):
        steps = tuple(
            Block(first=10 * n, steps=10, samples=10.0, seconds=duration) for n, duration in enumerate(seconds)
        )
        return replace(sample(arm, LOSSES), blocks=steps)

    assert late_check(trial([run("base", base), run("new", new)], Risk.EXACT, TrialStage.LASTING), None).passed
