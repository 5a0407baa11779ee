"""What both arms leave beside their losses: which differences reject, and which are the baseline's own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prover_records import noise_trial, sample, trial

from hotlap.judge.gates import gate
from hotlap.judge.late_slowdown import late_check
from hotlap.judge.memory import MemoryLimits
from hotlap.judge.rounding import NUDGE
from hotlap.records.plan import Risk
from hotlap.records.traces import Evaluation, Fingerprint, SavedFile, State, Traces, Weight
from hotlap.records.trial import Block, MetricValue, Stage
from hotlap.records.tune_record import Metric

LOSSES = tuple(1.0 / (1 + step) for step in range(40))


def prints(name: str, *numbers: float, start: tuple[float, ...] = ()) -> Fingerprint:
    size = sum(one * one for one in numbers) ** 0.5
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
    }
    own = {name: value for name, value in changed.items() if name in state}
    return Traces(state=State(**state | own), **whole | {k: v for k, v in changed.items() if k not in state})


def ran(arm: str = "base", nudge: float = 0.0, readings=(), **changed):
    made = sample(arm, LOSSES, nudge=nudge, readings=readings)
    return replace(made, traces=traces(**changed), host_mb=changed.get("tree_mb", 400.0))


def judged(risk: Risk = Risk.EXACT, allowed: MemoryLimits | None = None, **changed):
    noise = noise_trial([ran()], [ran(nudge=NUDGE)])
    return gate(trial([ran(), ran("new", **changed)], risk), noise, None, (), allowed)


def test_equal_arms_pass_and_what_was_compared_is_named():
    found = judged()
    assert found.passed
    assert {one.name for one in found.checks if one.passed} >= {
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
}


@pytest.mark.parametrize("what", HARM)
def test_at_exact_any_difference_rejects_and_is_named(what):
    found = judged(**HARM[what])
    assert found.passed is False
    assert [one.name for one in found.checks if one.passed is False] == [what]
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
}


@pytest.mark.parametrize("risk", [Risk.ROUNDING, Risk.NUMERIC])
@pytest.mark.parametrize("what", CHANGED_KINDS)
def test_what_no_rounding_and_no_precision_explains_rejects_at_every_risk(what, risk):
    if risk is Risk.ROUNDING:
        assert judged(risk, **CHANGED_KINDS[what]).passed is False
    else:
        failed = [one for one in judged(risk, **CHANGED_KINDS[what]).checks if one.passed is False]
        assert failed, what


def test_other_numbers_of_the_size_of_rounding_pass_at_rounding_and_not_at_exact():
    near = {
        "weights": (prints("Net.weight", 1.0 + 1e-6, 2.0), prints("Net.frozen", 3.0)),
        "saved": (replace(LAST, parts=(prints("weight", 1.0 + 1e-6, 2.0),)), traces().saved[1]),
        "printed": ("epoch 1 loss 0.500001 took 3.1 s", "done"),
    }
    assert judged(Risk.ROUNDING, **near).passed
    assert judged(Risk.EXACT, **near).passed is False


def test_kernels_of_another_precision_may_draw_another_count_on_the_device():
    other = {"streams": (("torch", "a"), ("cuda:0", "z"))}
    assert judged(Risk.ROUNDING, **other).passed is False
    assert all(one.passed is not False for one in judged(Risk.NUMERIC, **other).checks)


def test_what_the_baseline_does_not_repeat_is_left_out_and_said():
    again = ran(printed=("epoch 1 loss 0.5 took 2.9 s", "done"))
    noise = noise_trial([again], [ran(nudge=NUDGE)])
    slow = ("epoch 1 loss 0.5 took 9.9 s", "done")
    found = gate(trial([ran(), ran("new", printed=slow)], Risk.EXACT), noise, None)
    assert found.passed
    (lines,) = [one for one in found.checks if one.name == "printed lines"]
    assert lines.left_out == ("number 2 of epoch # loss # took # s",)
    wrong = ("epoch 1 loss 0.7 took 9.9 s", "done")
    assert gate(trial([ran(), ran("new", printed=wrong)], Risk.EXACT), noise, None).passed is False


def test_a_name_that_holds_the_time_is_no_other_file():
    def saved(clock):
        return (replace(LAST, path=f"/w/run-{clock}/last.pt"),)

    noise = noise_trial([ran(saved=saved(112))], [ran(saved=saved(113), nudge=NUDGE)])
    whole = trial([ran(saved=saved(114)), ran("new", saved=saved(115))], Risk.EXACT)
    assert gate(whole, noise, None).passed
    assert gate(trial([ran(saved=saved(114)), ran("new", saved=())], Risk.EXACT), noise, None).passed is False


def test_a_difference_is_no_evidence_where_no_seed_was_run_twice():
    found = gate(trial([ran(), ran("new", exit_code=3)], Risk.EXACT), None, None)
    assert found.passed is None
    assert found.more == 1
    assert "whether the baseline repeats that is not known" in found.why


def test_a_change_in_evaluation_alone_is_told_as_that():
    assert judged(**HARM["evaluation"]).why.startswith("training is the same, evaluation is not: ")
    both = judged(**HARM["evaluation"], **HARM["weights"])
    assert "training is the same" not in both.why


def test_a_metric_must_be_the_same_at_exact():
    def read(value):
        return (MetricValue(name="acc", step=20, value=value),)

    noise = noise_trial([ran(readings=read(0.9))], [ran(nudge=NUDGE)])
    same, other = (trial([ran(readings=read(0.9)), ran("new", readings=read(one))], Risk.EXACT) for one in (0.9, 0.8))
    assert gate(same, noise, None).passed
    assert "acc" in gate(other, noise, None).why


def test_the_new_arm_that_told_nothing_is_no_evidence():
    silent = replace(ran("new"), traces=replace(traces(), state=None))
    noise = noise_trial([ran()], [ran(nudge=NUDGE)])
    assert gate(trial([ran(), silent], Risk.EXACT), noise, None).passed is None


# Memory


def growing(step_mb: float, first: float = 300.0, until: int = 200):
    return {
        "memory": tuple(Weight(step=s, host_mb=first + step_mb * min(s, until), device_mb=None) for s in range(1, 49))
    }


def test_memory_that_keeps_growing_is_seen_before_it_is_much():
    found = judged(**growing(0.8))
    assert found.passed is False
    assert "grows by" in found.why
    assert judged(**growing(0.02)).passed, "a breath is not growth"
    assert judged(**growing(4.0, until=20)).passed, "nor is what stops"


def test_memory_that_begins_to_grow_late_is_seen():
    late = tuple(Weight(step=s, host_mb=300.0 + max(0, s - 24) * 2.0, device_mb=None) for s in range(1, 49))
    assert judged(memory=late).passed is False


def test_a_baseline_that_grows_itself_excuses_as_much():
    leak = growing(2.0)
    noise = noise_trial([ran(**leak)], [ran(nudge=NUDGE, **leak)])
    assert gate(trial([ran(**leak), ran("new", **leak)], Risk.EXACT), noise, None).passed


def test_who_gives_a_limit_has_said_how_much_may_be_taken():
    assert judged(tree_mb=900.0, allowed=MemoryLimits(host_mb=1000.0)).passed
    assert "--memory" in judged(tree_mb=900.0).why


# The last part of a long run


def long_run(new_last: float, pairs: int = 2):
    def one(arm, seconds):
        steps = tuple(Block(first=10 * n, steps=10, samples=10.0, seconds=each) for n, each in enumerate(seconds))
        return replace(sample(arm, LOSSES), blocks=steps)

    base = [one("base", [1.0] * 12)] * pairs
    new = [one("new", [0.5] * 6 + [new_last] * 6)] * pairs
    return trial([*base, *new], Risk.EXACT, Stage.LASTING)


def test_what_becomes_slow_later_is_rejected_once_two_pairs_show_it():
    assert late_check(long_run(0.5), None).passed
    assert late_check(long_run(1.5, pairs=1), None).passed is None
    found = late_check(long_run(1.5), None)
    assert found.passed is False
    assert "becomes slower later" in found.why


@pytest.mark.parametrize("risk", [Risk.ROUNDING, Risk.NUMERIC])
@pytest.mark.parametrize(("factor", "passed"), [(1.0, True), (1.02, True), (1.4, False), (0.6, False)])
def test_one_longer_run_that_need_not_be_exact_shows_harm_in_plain_sight(risk, factor, passed):
    """Three seeds were run before; at the end of a long run the baseline is far from itself."""
    late = [loss * (factor if step > 150 else 1) for step, loss in enumerate(falling())]
    nudged = [loss * (1 + 0.001 * step % 0.02) for step, loss in enumerate(falling())]
    samples = [sample(losses=falling()), sample("new", losses=late), sample(losses=nudged, nudge=NUDGE)]
    found = gate(trial(samples, risk, Stage.LASTING), None, None)
    assert found.passed is passed, found.why


def test_a_metric_that_is_worse_at_the_end_of_a_longer_run_rejects():
    def run(arm, value):
        return sample(arm, falling(), readings=[MetricValue(name="acc", step=90, value=value)])

    accuracy = Metric(name="acc", pattern=None, tag=None, higher_is_better=True, margin=None)
    for value, passed in ((0.9, True), (0.95, True), (0.7, False)):
        whole = trial([run("base", 0.9), run("new", value)], Risk.NUMERIC, Stage.LASTING)
        assert gate(whole, None, accuracy).passed is passed


def falling() -> list[float]:
    return [1.0 + 2.0 / (1 + step / 20) for step in range(200)]


def test_an_evaluation_as_slow_as_ever_is_no_slower_training():
    base, new = [1.0] * 11 + [9.0], [0.5] * 11 + [8.5]

    def one(arm, seconds):
        steps = tuple(Block(first=10 * n, steps=10, samples=10.0, seconds=each) for n, each in enumerate(seconds))
        return replace(sample(arm, LOSSES), blocks=steps)

    assert late_check(trial([one("base", base), one("new", new)], Risk.EXACT, Stage.LASTING), None).passed
