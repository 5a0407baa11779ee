"""The verdict names what limits a step, and its sentence gives the figures."""

from dataclasses import replace

import pytest

from hotlap.diagnose import diagnose
from hotlap.records.diagnosis import VERDICTS
from hotlap.records.observation import Ceiling
from tests.observations import (
    device,
    input_bound,
    kernel,
    launch_bound,
    model,
    observation,
    on_cuda,
    partial,
    sync,
    sync_bound,
)


def shares(**values: float) -> dict[str, float]:
    return {**values, "rest": 1.0 - sum(values.values())}


def ceiling(ratio: float, step: float = 10.0) -> Ceiling:
    return Ceiling(samples_per_second=ratio * 64 * 1000 / step, step_ms=(step / ratio,) * 10, note=None)


COMPUTING = {"forward": 0.4, "backward": 0.5, "optimizer": 0.05}


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        pytest.param(observation(), "compute-bound", id="healthy on CPU"),
        pytest.param(input_bound(), "input-bound", id="waits for data on CPU"),
        pytest.param(
            observation(shares=shares(data=0.35, forward=0.6), ceiling=None), "input-bound", id="data a third"
        ),
        pytest.param(
            observation(shares=shares(data=0.29, forward=0.7), ceiling=None), "compute-bound", id="data below a third"
        ),
        pytest.param(
            observation(shares=shares(sync=0.9, forward=0.05), step=0.5), "balanced", id="CPU: reads of microseconds"
        ),
        pytest.param(
            observation(shares=shares(sync=0.6, forward=0.3), step=40.0), "sync-bound", id="CPU: reads of 24 ms"
        ),
        pytest.param(observation(shares=shares(sync=0.4, forward=0.55)), "compute-bound", id="CPU: more compute"),
        pytest.param(observation(shares=shares(copy=0.6, forward=0.3)), "copy-bound", id="CPU: copies"),
        pytest.param(
            observation(shares=shares(data=0.25, forward=0.25, backward=0.2, copy=0.2)),
            "balanced",
            id="no single cause",
        ),
        pytest.param(observation(shares={"rest": 0.8, "backward": 0.2}, models=()), "unknown", id="all in rest"),
        pytest.param(observation(shares={"garbage": 0.7, "forward": 0.3}), "unknown", id="garbage has no verdict"),
        pytest.param(observation(shares={"span:tokens": 0.7, "forward": 0.3}), "unknown", id="user section"),
        pytest.param(partial(), "unknown", id="no step"),
        pytest.param(on_cuda(), "compute-bound", id="device busy, matmul"),
        pytest.param(
            on_cuda(shares=shares(sync=0.8, forward=0.15), device=device(9.0)), "compute-bound", id="busy beats sync"
        ),
        pytest.param(
            on_cuda(device=device(8.5, kernels=(kernel("memory", 0.6), kernel("matmul", 0.4)))),
            "memory-bound",
            id="device busy, memory",
        ),
        pytest.param(
            on_cuda(device=device(8.5, kernels=(kernel("copy", 0.6), kernel("matmul", 0.4)))),
            "copy-bound",
            id="device busy copying",
        ),
        pytest.param(on_cuda(device=device(8.0)), "compute-bound", id="busy 80 %"),
        pytest.param(on_cuda(device=device(7.9), ceiling=None), "balanced", id="busy 79 %"),
        pytest.param(sync_bound(), "sync-bound", id="idle device, syncs"),
        pytest.param(launch_bound(), "launch-bound", id="idle device, launches"),
        pytest.param(
            on_cuda(shares=shares(sync=0.5, forward=0.5), device=device(5.0)), "sync-bound", id="a tie goes to sync"
        ),
        pytest.param(on_cuda(shares=shares(copy=0.4, forward=0.6), device=device(2.0)), "launch-bound", id="launches"),
        pytest.param(on_cuda(shares=shares(copy=0.7, forward=0.2), device=device(2.0)), "copy-bound", id="copies"),
        pytest.param(
            on_cuda(shares=shares(data=0.6, forward=0.3), device=device(2.0), ceiling=None), "input-bound", id="data"
        ),
        pytest.param(
            on_cuda(shares=shares(data=0.32, sync=0.6), device=device(1.0), ceiling=None),
            "sync-bound",
            id="more sync than data",
        ),
        pytest.param(
            on_cuda(shares=shares(data=0.5, forward=0.4), device=device(9.0), ceiling=None),
            "compute-bound",
            id="waiting for data while the device works",
        ),
        pytest.param(on_cuda(device=None), "unknown", id="no device profile"),
        pytest.param(
            on_cuda(device=None, shares=shares(data=0.6, forward=0.3), ceiling=None),
            "input-bound",
            id="no profile, data",
        ),
        pytest.param(
            observation(models=(model(device="mps:0"),), shares=shares(**COMPUTING)), "unknown", id="another device"
        ),
    ],
)
def test_the_most_costly_cause_names_the_verdict(seen, verdict):
    assert verdict in VERDICTS
    assert diagnose(seen).verdict == verdict


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (
            observation(40.0, shares=shares(data=0.72, forward=0.28), ceiling=ceiling(3.4, 40.0)),
            "Input-bound: 72 % of each step waits for data (28.8 of 40.0 ms); "
            "with a cached batch it would run 3.4× as many samples a second.",
        ),
        (
            observation(40.0, shares=shares(data=0.75, forward=0.25), ceiling=None),
            "Input-bound: 75 % of each step waits for data (30.0 of 40.0 ms); "
            "without that wait it would be at most 4.0× as fast.",
        ),
        (
            launch_bound(),
            "Launch-bound: issuing the 840 launches of a step takes the host 9.0 of 10.0 ms (10.7 µs a launch), "
            "while the device is busy only 18 % of it.",
        ),
        (
            on_cuda(10.0, shares=shares(sync=0.7, forward=0.2), device=device(2.0), syncs=(sync(waits=True),)),
            "Sync-bound: 70 % of each step the host waits in 1.0 syncs (7.0 of 10.0 ms), "
            "while the device is busy only 20 % of it.",
        ),
        (
            on_cuda(),
            "Compute-bound: the device is busy 90 % of each step (9.0 of 10.0 ms), 70 % of that in matmul; "
            "only less work on the device makes it faster.",
        ),
        (partial(), "Unknown: no training step was measured."),
    ],
)
def test_the_sentence_contains_its_figures(seen, sentence):
    assert diagnose(seen).sentence == sentence


def test_few_slow_launches_are_attributed_to_python():
    seen = on_cuda(shares=shares(forward=0.8), device=device(1.0, launches_per_step=40.0))
    assert "200 µs a launch, mostly Python between launches" in diagnose(seen).sentence


class TestCeiling:
    WAITING = shares(data=0.5, forward=0.45)

    def test_a_ceiling_without_gain_rules_out_input_bound_and_says_so(self):
        found = diagnose(observation(shares=self.WAITING, ceiling=ceiling(1.02)))
        assert found.verdict != "input-bound"
        assert "50 % of each step waits for data, yet with a cached batch it ran no faster (1.02×)" in found.sentence
        assert "data-wait" not in {finding.code for finding in found.findings}
        assert any("what the 50 % spent waiting for data cost" in unknown for unknown in found.unknowns)

    def test_a_ceiling_with_little_gain_is_mentioned(self):
        found = diagnose(observation(shares=self.WAITING, ceiling=ceiling(1.25)))
        assert found.verdict != "input-bound"
        assert "only 1.2× as fast" in found.sentence
        (waiting,) = [finding for finding in found.findings if finding.code == "data-wait"]
        assert waiting.at_most == pytest.approx(1.25)

    def test_a_measured_ceiling_outweighs_a_busy_device(self):
        found = diagnose(on_cuda(shares=self.WAITING, device=device(8.5), ceiling=ceiling(2.0)))
        assert found.verdict == "input-bound"

    def test_a_faster_ceiling_without_a_wait_is_not_explained_by_input(self):
        found = diagnose(observation(ceiling=ceiling(2.0)))
        assert found.verdict == "compute-bound"
        assert any("why a cached batch ran 2.0× as fast" in unknown for unknown in found.unknowns)

    def test_the_ceiling_is_compared_by_step_time_without_sample_counts(self):
        seen = observation(
            shares=self.WAITING,
            samples_per_second=None,
            ceiling=Ceiling(samples_per_second=None, step_ms=(4.0,) * 10, note=None),
        )
        assert "2.5× as many samples" in diagnose(seen).sentence

    def test_an_evaluation_inside_the_window_is_not_counted_as_gain_of_the_ceiling(self):
        seen = observation(20.0, shares={"evaluation": 0.5, "forward": 0.3, "data": 0.2}, ceiling=ceiling(1.0, 10.0))
        assert seen.samples_per_second is not None
        seen = replace(seen, samples_per_second=2 * seen.samples_per_second)  # they are counted without the evaluation
        found = diagnose(seen)
        assert found.verdict != "input-bound"
        assert "no faster (1.00×)" in found.sentence


def test_evaluation_is_not_part_of_a_step():
    seen = observation(20.0, shares={"evaluation": 0.5, "data": 0.25, "forward": 0.25}, ceiling=None)
    assert "50 % of each step waits for data (5.0 of 10.0 ms)" in diagnose(seen).sentence
