"""A diagnosis lists what it cannot tell, with the reason."""

import pytest

from hotlap.diagnose import diagnose
from hotlap.records.observation import Ceiling
from tests.observations import observation, on_cuda, partial


def test_a_complete_observation_has_no_unknowns():
    assert diagnose(observation()).unknowns == ()
    assert diagnose(on_cuda()).unknowns == ()


@pytest.mark.parametrize(
    ("seen", "what", "why"),
    [
        (observation(loaders=()), "what input costs", "no DataLoader was seen"),
        (observation(models=()), "forward from the rest", "no module owning"),
        (on_cuda(device=None), "launch- from compute-bound", "no device profile was taken"),
        (observation(samples_per_second=None), "samples per second", "was not seen"),
        (observation(samples_per_second=float("nan")), "samples per second", "was not seen"),
        (observation(steps=9), "these figures from chance", "only 9 steps"),
        (observation(losses=()), "whether training works", "no loss was seen"),
        (observation(ceiling=None), "how fast it would run without input", "was not measured"),
        (
            observation(ceiling=Ceiling(samples_per_second=None, step_ms=(), note="it timed out.")),
            "how fast it would run without input",
            "because it timed out",
        ),
        (partial(), "where the time goes", "no training step was measured"),
    ],
)
def test_a_missing_signal_is_named_with_its_reason(seen, what, why):
    (unknown,) = diagnose(seen).unknowns
    assert unknown.startswith(f"cannot tell {what}")
    assert why in unknown


def test_ten_steps_are_enough():
    assert diagnose(observation(steps=10)).unknowns == ()
